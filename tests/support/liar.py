"""A server whose answers are given by the test."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable

from typing_extensions import Self


class Liar:
    """A server on a port. For each piece of data that arrives it sends what ``answer`` yields; if that is nothing, it
    closes the connection."""

    def __init__(self, answer: Callable[[bytes], Iterable[bytes]]) -> None:
        self.answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=self._listener.accept()[:1], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while data := client.recv(65_536):
                answered = False
                for piece in self.answer(data):
                    client.sendall(piece)
                    answered = True
                if not answered:
                    break
