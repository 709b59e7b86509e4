"""A real primary with replicas and sentinels, for one fail-over."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import Self

from support.servers import Binary, Server
from support.waiting import until

SERVICE = "limits"
DOWN_AFTER_MILLISECONDS = 2000
"""With fewer, sentinels on a busy machine would believe that others are down."""


class SentinelServer(Server):
    """One sentinel that watches the server at ``port``; ``options`` are further lines of its file."""

    def __init__(self, binary: Binary, port: int, *, quorum: int, options: Sequence[str] = ()) -> None:
        super().__init__(binary, tcp=True)
        self._lines = (
            f"sentinel monitor {SERVICE} 127.0.0.1 {port} {quorum}",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MILLISECONDS}",
            f"sentinel failover-timeout {SERVICE} 10000",
            *options,
        )

    @property
    def _command(self) -> list[str | Path]:
        """All options are in a file, because a sentinel needs a file that it can change."""
        file = self.folder / "sentinel.conf"
        address = ("bind 127.0.0.1", f"port {self.port}", f"unixsocket {self.url.removeprefix('unix://')}")
        file.write_text("\n".join((f"dir {self.folder}", *address, *self._lines)) + "\n")
        return [self.binary.path, file, "--sentinel"]


class Trio(contextlib.ExitStack):
    """One primary, ``replicas`` of it, and three sentinels, once they all know each other.

    ``options`` are further arguments of the primary and the replicas, ``lines`` further lines of the sentinels' files.
    """

    def __init__(
        self, binary: Binary, *, replicas: int = 2, options: Sequence[str] = (), lines: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._binary = binary
        self._count = replicas
        self._options = options
        self._lines = lines

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    @property
    def hosts(self) -> str:
        """The sentinels, as a URI names them."""
        return ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)

    @property
    def url(self) -> str:
        return f"redis+sentinel://{self.hosts}/{SERVICE}"

    def wait_for_another_primary(self) -> Server:
        """The replica that has become the primary, as soon as one sentinel says so."""
        old, found = self.primary.port, set[int]()

        def is_told() -> bool:
            found.update(self._state(sentinel)["port"] for sentinel in self.sentinels)
            return found != {old}

        until(is_told)
        return next(replica for replica in self.replicas if replica.port in found)

    def wait_for_good_replicas(self) -> None:
        """Wait until each sentinel knows that all replicas are connected to the primary: it promotes no others."""

        def are_good() -> bool:
            for sentinel in self.sentinels:
                with sentinel.client() as client:
                    links = [each["master-link-status"] for each in client.sentinel_slaves(SERVICE)]
                if links != ["ok"] * self._count:
                    return False
            return True

        until(are_good)

    def _start(self) -> None:
        quick = ("--repl-diskless-sync", "yes", *self._options)
        self.primary = self.enter_context(Server(self._binary, tcp=True, options=quick))
        follow = ("--replicaof", f"127.0.0.1 {self.primary.port}")
        self.replicas = [
            self.enter_context(Server(self._binary, tcp=True, options=(*quick, *follow))) for _ in range(self._count)
        ]
        self.sentinels = [
            self.enter_context(SentinelServer(self._binary, self.primary.port, quorum=2, options=self._lines))
            for _ in range(3)
        ]
        until(self._all_know_each_other)

    def _all_know_each_other(self) -> bool:
        states = [self._state(sentinel) for sentinel in self.sentinels]
        return all((state["num-slaves"], state["num-other-sentinels"]) == (self._count, 2) for state in states)

    @staticmethod
    def _state(sentinel: Server) -> dict[str, Any]:
        with sentinel.client() as client:
            state: dict[str, Any] = client.sentinel_masters()[SERVICE]
        return state
