"""Limits that are changed while the storage fails: a change is refused or stored, and earlier changes stay in force."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from typing_extensions import Self

from control.conftest import Shop, shop_on
from flask_multilimit.engine import StorageError
from support.proxy import FaultProxy
from support.sentinel import Trio
from support.servers import Binary, Server
from support.waiting import until

pytestmark = pytest.mark.slow

SHOPS = 3
FIRST = "198.51.100.7"
"""Denied before the storage fails."""


def shops_on(uri: str) -> list[Shop]:
    """Several workers of the app, which all deny ``FIRST``."""
    shops = [shop_on(uri, MULTILIMIT_STORAGE_TIMEOUT=0.5) for _ in range(SHOPS)]
    for shop in shops:
        shop.statuses(1, "/open")
    shops[0].control.deny(FIRST, lasting=True)
    until(lambda: denied_by_all(shops, FIRST))
    return shops


def denied_by_all(shops: list[Shop], who: str) -> bool:
    return all(shop.statuses(1, "/open", ip=who) == [403] for shop in shops)


def denied_by_none(shops: list[Shop], who: str) -> bool:
    return all(shop.statuses(1, "/open", ip=who) == [200] for shop in shops)


def denied(shop: Shop) -> list[str]:
    """The clients denied in storage."""
    return [str(each.who) for each in shop.control.entries() if each.kind != "override"]


def changed(shop: Shop) -> list[str]:
    """The clients that were denied according to the history, the oldest first."""
    told = reversed(shop.control.history())
    return [change["entry"].removeprefix("deny ") for change in told if change["what"] == "set"]


@dataclass(slots=True)
class Change:
    who: str
    begun: float
    ended: float
    error: Exception | None


@dataclass(slots=True)
class Changes:
    """A thread that denies one address after the other."""

    shop: Shop
    made: list[Change] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def of(self, *, stored: bool) -> list[Change]:
        return [each for each in self.made if (each.error is None) is stored]

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            who, begun, error = f"10.0.{len(self.made) // 200}.{len(self.made) % 200}", time.monotonic(), None
            try:
                self.shop.control.deny(who, lasting=True)
            except Exception as raised:
                error = raised
            self.made.append(Change(who, begun, time.monotonic(), error))


@pytest.mark.parametrize("fault", [Server.kill, Server.suspend], ids=["killed", "frozen"])
def test_changes_during_a_fail_over_are_stored_or_errors(binary: Binary, fault: Callable[[Server], None]) -> None:
    """Two changes may be lost or stored: the one in progress when the primary fails, and the one before it, because a
    replica follows a little behind."""
    with Trio(binary) as trio:
        shops = shops_on(trio.url)
        trio.wait_for_good_replicas()
        with Changes(shops[0]) as changes:
            until(lambda: len(changes.of(stored=True)) > 5)
            began = time.monotonic()
            fault(trio.primary)
            until(lambda: changes.of(stored=False))
            assert denied_by_all(shops, FIRST)
            trio.wait_for_another_primary()
            assert denied_by_all(shops, FIRST)
            after = len(changes.made)
            until(lambda: any(each.error is None for each in changes.made[after + 1 :]))
        shops[-1].control.deny("203.0.113.1", lasting=True)

        in_force = denied(shops[1])
        before = [each for each in changes.made if each.ended < began]
        unknown = {each.who for each in changes.made if each.begun <= began <= each.ended} | {before[-1].who}
        stored = [each.who for each in changes.of(stored=True)]
        assert all(isinstance(each.error, StorageError) for each in changes.of(stored=False))
        assert set(in_force) - unknown == {FIRST, *stored, "203.0.113.1"} - unknown
        assert changed(shops[1]) == in_force
        for who in in_force:
            until(lambda who=who: denied_by_all(shops, who))  # type: ignore[misc]
        for each in changes.of(stored=False)[-2:]:
            assert each.who in unknown or denied_by_none(shops, each.who)


def test_disconnected_worker_learns_the_newest_changes_afterwards(binary: Binary) -> None:
    with Server(binary) as server, FaultProxy(server.url.removeprefix("unix://")) as proxy:
        shop, far = shop_on(server.url), shop_on(proxy.url)
        shop.control.deny(FIRST, lasting=True)
        until(lambda: denied_by_all([shop, far], FIRST))

        proxy.begin("reset")
        shop.control.undo(shop.control.entries()[0].id)
        shop.control.deny("203.0.113.1", lasting=True)
        with pytest.raises(StorageError):
            far.control.deny("203.0.113.2", lasting=True)
        assert denied_by_all([far], FIRST)
        proxy.end()

        until(lambda: denied_by_all([far], "203.0.113.1"))
        assert denied_by_none([shop, far], FIRST)
        assert denied_by_none([shop, far], "203.0.113.2")
