"""A server, a proxy before it, and every fault that they can have."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import redis

from support.proxy import FaultProxy
from support.servers import Binary, Server
from support.waiting import until

PAUSE_MILLISECONDS = 1500


@dataclass(frozen=True, slots=True)
class World:
    server: Server
    proxy: FaultProxy

    @property
    def admin(self) -> redis.Redis:
        """A client that no fault affects."""
        return self.server.client()


@contextlib.contextmanager
def new_world(binary: Binary) -> Iterator[World]:
    with Server(binary, tcp=True) as server, FaultProxy(server.url.removeprefix("unix://")) as proxy:
        yield World(server, proxy)


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    begin: Callable[[World], object]
    end: Callable[[World], object]
    noticed: bool = True
    """Whether checks get no answer."""
    forgets: bool = False
    """Whether the server loses its data."""


def _through_proxy(name: str, fault: str, *, noticed: bool = True, seconds: float = 0.0, reply: bytes = b"") -> Fault:
    return Fault(
        name,
        lambda world: world.proxy.begin(fault, seconds=seconds, reply=reply),
        lambda world: world.proxy.end(),
        noticed=noticed,
    )


def _says(name: str, reply: bytes) -> Fault:
    return _through_proxy(name, "says", reply=reply + b"\r\n")


def _configured(name: str, setting: str, wrong: str, right: str) -> Fault:
    return Fault(
        name,
        lambda world: world.admin.config_set(setting, wrong),
        lambda world: world.admin.config_set(setting, right),
    )


def _require_password(world: World) -> None:
    admin = world.admin
    admin.config_set("requirepass", "secret")
    admin.client_kill_filter(_type="normal", skipme=True)


def _drop_password(world: World) -> None:
    world.server.client(password="secret").config_set("requirepass", "")


def _run_an_endless_script(world: World) -> None:
    world.admin.config_set("lua-time-limit", 20)
    busy = world.server.client(socket_timeout=60)

    def run() -> None:
        with contextlib.suppress(Exception):
            busy.eval("while true do end", 0)

    threading.Thread(target=run, daemon=True).start()
    time.sleep(0.1)


def _kill_the_script(world: World) -> None:
    world.admin.script_kill()


def _make_saving_fail(world: World) -> None:
    admin = world.admin
    (world.server.folder / "dump.rdb").mkdir()
    admin.config_set("save", "3600 1")
    admin.bgsave()
    until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")


def _stop_saving(world: World) -> None:
    """Otherwise the server would refuse to stop, because its last save failed."""
    world.admin.config_set("save", "")
    (world.server.folder / "dump.rdb").rmdir()


def _wait_for_the_pause_to_end(world: World) -> None:
    world.server.client(socket_timeout=10).ping()


def _nothing(_: World) -> None:
    pass


def _set_rights(world: World, rights: str) -> None:
    run: Callable[[str], object] = world.admin.execute_command
    run(f"ACL SETUSER default {rights}")


FAULTS = (
    Fault("SIGSTOP", lambda world: world.server.suspend(), lambda world: world.server.resume()),
    Fault("SIGKILL, restart", lambda world: world.server.kill(), lambda world: world.server.restart(), forgets=True),
    Fault("CLIENT PAUSE", lambda world: world.admin.client_pause(PAUSE_MILLISECONDS), _wait_for_the_pause_to_end),
    Fault(
        "CLIENT KILL",
        lambda world: world.admin.client_kill_filter(_type="normal", skipme=True),
        _nothing,
        noticed=False,
    ),
    Fault("SCRIPT FLUSH", lambda world: world.admin.script_flush("SYNC"), _nothing, noticed=False),
    _configured("maxmemory (OOM)", "maxmemory", "1", "0"),
    Fault(
        "REPLICAOF (READONLY)",
        lambda world: world.admin.replicaof("127.0.0.1", 1),
        lambda world: world.admin.replicaof("NO", "ONE"),
    ),
    Fault("a script that does not end (BUSY)", _run_an_endless_script, _kill_the_script),
    Fault("disk full (MISCONF)", _make_saving_fail, _stop_saving),
    Fault(
        "ACL change (NOPERM)",
        lambda world: _set_rights(world, "-evalsha -eval"),
        lambda world: _set_rights(world, "+@all"),
    ),
    Fault("password change (NOAUTH)", _require_password, _drop_password),
    _through_proxy("reset on connect", "reset"),
    _through_proxy("blackhole", "blackhole"),
    _through_proxy("lost replies", "lost reply"),
    _through_proxy("replies cut short", "cut"),
    _through_proxy("replies a byte at a time", "dribble", seconds=0.09),
    _through_proxy("20 ms of latency", "latency", seconds=0.02, noticed=False),
    _through_proxy("500 ms of latency", "latency", seconds=0.5),
    _says("LOADING", b"-LOADING Redis is loading the dataset in memory"),
    _says("CLUSTERDOWN", b"-CLUSTERDOWN The cluster is down"),
    _says("a proxy whose server is away", b"-ERR Connection refused"),
    _says("a reply of the wrong shape", b"*3\r\n:1\r\n:2\r\n:3"),
    _says("a reply of the wrong kind", b"*5\r\n:1\r\n:0\r\n$-1\r\n+OK\r\n:3"),
    _says("no protocol", b"HTTP/1.1 400 Bad Request"),
)
