"""Limits the number of elements that a reply may announce: hiredis allocates room for all before the first one arrives.

Freeing gigabytes that were never filled takes seconds, whatever the deadline, and no other thread runs meanwhile.
"""

from __future__ import annotations

from redis.exceptions import InvalidResponse

MOST = 999_999
"""The most elements: no question of ours has a longer answer."""
_HEADER = 24
"""The bytes of a line that can matter: a type and a number."""
_WITH_ELEMENTS = b"*~>%|"
_WITH_TEXT = b"$!="


class Announcements:
    """Reads what a server sends, in pieces of any size, and skips texts, in which ``*`` has no meaning."""

    def __init__(self) -> None:
        self._line = b""
        self._text = 0
        """Bytes of the current text and its line end that have not arrived yet."""

    def read(self, received: bytes) -> None:
        """Raise :class:`InvalidResponse` if a reply of more than :data:`MOST` elements begins in ``received``."""
        at = 0
        while at < len(received):
            if self._text:
                skipped = min(self._text, len(received) - at)
                self._text -= skipped
                at += skipped
                continue
            end = received.find(b"\n", at)
            self._line = (self._line + received[at : end if end >= 0 else at + _HEADER])[:_HEADER]
            if end < 0:
                return
            self._take(self._line)
            self._line, at = b"", end + 1

    def _take(self, line: bytes) -> None:
        kind, number = line[:1], line[1:].strip()
        if not number.isdigit():
            return
        if kind in _WITH_ELEMENTS and int(number) > MOST:
            raise InvalidResponse(f"the server announces a reply of more than {MOST} elements")
        if kind in _WITH_TEXT:
            self._text = int(number) + len(b"\r\n")
