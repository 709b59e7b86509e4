"""A proxy on a port between a client and a server, which can have faults."""

import contextlib
import re
import socket
import struct
import threading
import time

from typing_extensions import Self

RESET_ON_CLOSE = struct.pack("ii", 1, 0)
COMMAND = re.compile(rb"^\*\d+\r$", re.MULTILINE)
PING, PONG = b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"


class FaultProxy:
    """A proxy before the unix socket ``target``. ``fault`` affects every connection, old and new:

    - ``latency``: each reply comes ``seconds`` later
    - ``blackhole``: nothing is passed on, nothing is closed
    - ``reset``: every connection is reset, a new one at once
    - ``lost request``: the connection is closed, and the request not passed on
    - ``lost reply``: the request is passed on, and the connection closed before the reply
    - ``cut``: the connection is closed after half of the reply
    - ``dribble``: the reply comes byte by byte, one every ``seconds``
    - ``says``: every command is answered with ``reply``, in its turn: the server is asked for a PONG in place of it
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._silent: set[socket.socket] = set()
        self.fault: str | None = None
        self.seconds = 0.0
        self._reply = PONG
        self.once = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.fault = None
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._close_all()

    def begin(self, fault: str, *, seconds: float = 0.0, reply: bytes = b"", once: bool = False) -> None:
        """Begin a fault. With ``once``, it ends with the next loss."""
        self.seconds, self._reply, self.once, self.fault = seconds, reply or self._reply, once, fault
        if fault == "reset":
            self._close_all()

    def end(self) -> None:
        held, self.fault = self.fault == "blackhole", None
        if held:
            self._close_all()

    def silence(self) -> None:
        """From now on pass nothing on in the connections that are open, and do not close them, as a firewall may do."""
        self._silent |= self._open

    def _close_all(self) -> None:
        for end in list(self._open):
            _reset(end)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                if self.fault == "reset" or not _connects(server, self._target):
                    server.close()
                    _reset(client)
                    client.close()
                    continue
                self._open |= {client, server}
                for source, sink, pump in ((client, server, self._requests), (server, client, self._replies)):
                    threading.Thread(target=self._pump, args=(source, sink, pump), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, pump: object) -> None:
        assert callable(pump)
        with source, contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if source in self._silent:
                    continue
                if not pump(data, source, sink):
                    break
        for end in (sink, source):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)

    def _requests(self, data: bytes, source: socket.socket, sink: socket.socket) -> bool:
        if self.fault == "lost request":
            return self._lost()
        if self.fault == "says":
            sink.sendall(PING * len(COMMAND.findall(data)))
        elif self.fault != "blackhole":
            if source.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # it was reset: the client has repeated this
                return False
            sink.sendall(data)
        return True

    def _replies(self, data: bytes, source: socket.socket, sink: socket.socket) -> bool:
        del source
        fault, data = self.fault, data.replace(PONG, self._reply)
        if fault == "blackhole":
            return True
        if fault == "lost reply":
            return self._lost()
        if fault == "cut":
            sink.sendall(data[: len(data) // 2])
            return False
        if fault == "latency":
            time.sleep(self.seconds)
        if fault == "dribble":
            for byte in data:
                sink.sendall(bytes([byte]))
                time.sleep(self.seconds)
            return True
        sink.sendall(data)
        return True

    def _lost(self) -> bool:
        if self.once:
            self.fault = None
        return False


def _connects(server: socket.socket, target: str) -> bool:
    try:
        server.connect(target)
    except OSError:
        return False
    return True


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        end.shutdown(socket.SHUT_RDWR)
