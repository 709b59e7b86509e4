"""What the store of the control document makes of the replies of a server."""

from typing import Any

import pytest

from flask_multilimit.control.store import StoreInStorage
from flask_multilimit.engine import StorageError


class Replying:
    """A storage whose server gives one reply to all scripts."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    def run_script(self, *_: object) -> Any:
        return self.reply


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(7, id="another type"),
        pytest.param([b"1-2-a", b"3"], id="too short"),
        pytest.param([b"1-2-a", b"", float("inf"), 0, b""], id="no time"),
        pytest.param([b"1-2-a", b"", b"noon", 0, b""], id="no number"),
    ],
)
def test_document_of_the_wrong_shape_is_a_storage_error(reply: Any) -> None:
    with pytest.raises(StorageError, match="about the control document has the wrong shape"):
        StoreInStorage(Replying(reply), prefix="").read("")


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(7, id="another type"),
        pytest.param([[b"1-0"]], id="too short"),
        pytest.param([[b"1" * 400 + b"-0", []]], id="no time"),
        pytest.param([[b"1-0", [b"author"]]], id="field without value"),
        pytest.param([[b"1-0", None]], id="no fields"),
    ],
)
def test_history_of_the_wrong_shape_is_a_storage_error(reply: Any) -> None:
    with pytest.raises(StorageError, match="about the history has the wrong shape"):
        StoreInStorage(Replying(reply), prefix="").history(1)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(7, id="another type"),
        pytest.param([b"9"], id="too short"),
        pytest.param([b"9", b"1-2-a", b"shop:1 1 x", 10**400], id="no time"),
        pytest.param([b"9", b"1-2-a", b"shop:1 1 x"], id="worker without time"),
    ],
)
def test_workers_of_the_wrong_shape_are_a_storage_error(reply: Any) -> None:
    with pytest.raises(StorageError, match="about workers has the wrong shape"):
        StoreInStorage(Replying(reply), prefix="").workers()
