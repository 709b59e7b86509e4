"""Limits read from files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flask_multilimit import ConfigurationError
from flask_multilimit.declare.data import WrittenLimiter, read_limits

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["limits.json", "limits.toml"])
def test_toml_and_json_files_say_the_same(name: str, tmp_path: Path) -> None:
    texts = {
        "limits.json": '{"limits": {"api.*": [{"type": "ip", "rules": "5/day"}],"health": "off"}, "deny": ["::1"]}',
        "limits.toml": 'deny = ["::1"]\n[limits]\nhealth = "off"\n[[limits."api.*"]]\ntype = "ip"\nrules = "5/day"',
    }
    file = tmp_path / name
    file.write_text(texts[name])

    read = read_limits(file)

    assert read.limits == {"api.*": (WrittenLimiter(type="ip", rules="5/day"),), "health": "off"}
    assert read.deny == ("::1",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("limits.json", b"{", "is not valid JSON"),
        ("limits.toml", b"[", "is not valid TOML"),
        ("limits.toml", b"\xff", "is not valid TOML"),
        ("limits.json", b"[" * 100_000, "is not valid JSON"),
        ("limits.toml", b"a = " + b"[" * 100_000, "is not valid TOML"),
        ("limits.json", b"[]", "limits.json: "),
        ("limits.yaml", b"", "ends in .json or .toml"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content)

    with pytest.raises(ConfigurationError, match=message):
        read_limits(file)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml: cannot be read: No such file"):
        read_limits(tmp_path / "nowhere.toml")
