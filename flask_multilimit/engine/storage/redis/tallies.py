"""Packs tallies for a server and reads them back: the arguments of ``tally.lua``, the reply of ``tallies.lua``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import StorageError
from ..tallies import SOURCE_SECONDS, Tallies, Tally


def arguments_of(tallies: Sequence[Tally], source: str, number: int) -> list[bytes]:
    """The arguments of ``tally.lua``: the number of keys, the keys, and the rest."""
    keys = [source.encode(), *[tally.key.encode() for tally in tallies]]
    arguments = [b"%d" % number, b"%d" % SOURCE_SECONDS]
    for tally in tallies:
        mode = b"instants" if tally.instants else b""
        arguments += (b"%d" % tally.seconds, b"%d" % tally.most, mode, b"%d" % len(tally.amounts))
        for name, amount in tally.amounts.items():
            arguments += (name.encode(), b"%d" % amount)
    return [b"%d" % len(keys), *keys, *arguments]


def tallies_of(reply: Any, keys: int) -> Tallies:
    """The answer of ``tallies.lua`` for this number of keys. Raises :class:`StorageError`."""
    try:
        amounts = [_amounts(each) for each in reply[2:]]
        if len(amounts) == keys:
            return Tallies(seconds_of(reply), amounts)
    except (TypeError, ValueError, IndexError, OverflowError):
        pass
    raise StorageError(f"the reply about {keys} tallies has the wrong shape: {reply!r:.80}")


def seconds_of(reply: Any) -> float:
    """The time of the server's clock, with which both replies begin. Raises :class:`StorageError`."""
    try:
        return float(reply[0] + reply[1] / 1_000_000)
    except (TypeError, IndexError, OverflowError):
        raise StorageError(f"the reply to a tally has the wrong shape: {reply!r:.80}") from None


def _amounts(flat: Sequence[bytes | str]) -> dict[str, int]:
    return {_text(name): int(float(amount)) for name, amount in zip(flat[::2], flat[1::2], strict=True)}


def _text(name: bytes | str) -> str:
    return name if isinstance(name, str) else name.decode(errors="replace")
