"""What the store of the control document sends to a server, and makes of its replies."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from control.conftest import shop_on
from flask_multilimit.control import store as store_module
from flask_multilimit.control.store import ANNOUNCED_SECONDS, StoreInStorage, Worker, version_of, written_at
from flask_multilimit.engine import RedisStorage, StorageError
from support.doubles import raising
from support.servers import Server


class Replying:
    """A storage whose server gives one reply to all scripts."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    def run_script(self, *_: object) -> Any:
        return self.reply


Ask = Callable[[StoreInStorage], object]
READ: tuple[Ask, str] = (lambda store: store.read(""), "about the control document has the wrong shape")
HISTORY: tuple[Ask, str] = (lambda store: store.history(1), "about the history has the wrong shape")
WORKERS: tuple[Ask, str] = (lambda store: store.workers(), "about workers has the wrong shape")
NOT_TEXT = "has the wrong shape: 7"
WRONG: dict[str, tuple[Any, Ask, str]] = {
    "document of another type": (7, *READ),
    "document too short": ([b"1-2-a", b"3"], *READ),
    "document without time": ([b"1-2-a", b"", float("inf"), 0, b""], *READ),
    "document without number": ([b"1-2-a", b"", b"noon", 0, b""], *READ),
    "document without text": ([7, b"", 1, 0, b""], READ[0], NOT_TEXT),
    "change of another type": (7, lambda store: store.write("", "{}", {}), NOT_TEXT),  # type: ignore[typeddict-item]
    "history of another type": (7, *HISTORY),
    "history too short": ([[b"1-0"]], *HISTORY),
    "history without time": ([[b"1" * 400 + b"-0", []]], *HISTORY),
    "field of the history without value": ([[b"1-0", [b"author"]]], *HISTORY),
    "history without fields": ([[b"1-0", None]], *HISTORY),
    "history without text": ([[b"1-0", [b"author", 7]]], HISTORY[0], NOT_TEXT),
    "workers of another type": (7, *WORKERS),
    "workers too short": ([b"9"], *WORKERS),
    "workers at no time": ([b"9", b"1-2-a", b"shop:1 1 x", 10**400], *WORKERS),
    "worker without time": ([b"9", b"1-2-a", b"shop:1 1 x"], *WORKERS),
    "workers without text": ([b"9", 7], WORKERS[0], NOT_TEXT),
}


@pytest.mark.parametrize(("reply", "ask", "message"), WRONG.values(), ids=WRONG)
def test_reply_of_the_wrong_shape_is_a_storage_error(reply: Any, ask: Ask, message: str) -> None:
    with pytest.raises(StorageError, match=message):
        ask(StoreInStorage(Replying(reply), prefix=""))


def test_error_of_a_change_without_a_reply_keeps_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    error = StorageError("no answer", remedy="look at the network", no_reply=True)
    monkeypatch.setattr(Replying, "run_script", raising(error))
    change: Any = {}

    with pytest.raises(StorageError, match="the change may have been made") as caught:
        StoreInStorage(Replying(None), prefix="").write("", "{}", change)

    assert (caught.value.remedy, caught.value.no_reply) == ("look at the network", True)


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}], ids=str)
def test_clients_that_decode_or_speak_protocol_3_read_what_is_stored(server: Server, options: Any) -> None:
    change: Any = {"what": "set", "author": "Ä"}
    worker = Worker("shop:1", 1, "limits")
    with redis.Redis.from_url(server.url, **options) as client:
        store = StoreInStorage(RedisStorage(client), prefix="rate_limit:")
        stamp = store.write("", '{"Ä":1}', change)
        store.announce(worker, None)

        assert store.read("")[:2] == (stamp, '{"Ä":1}')
        assert [(each["what"], each["author"]) for each in store.history(9)] == [("set", "Ä")]
        assert [each[:3] for each in store.workers().workers] == [worker[:3]]


@pytest.fixture
def store(on_server: str) -> StoreInStorage:
    store = shop_on(on_server).follower.store
    assert isinstance(store, StoreInStorage)
    return store


def test_time_of_an_answer_is_that_of_the_server(store: StoreInStorage, redis_client: redis.Redis) -> None:
    def now() -> float:
        time: Any = redis_client.time()
        return float(time[0] + time[1] / 1_000_000)

    before, found, after = now(), store.read("").now, now()

    assert before <= found <= after


def test_document_that_is_put_back_has_the_time_of_the_latest_change(store: StoreInStorage) -> None:
    change: Any = {"what": "put back"}
    stamp, found = "", list[tuple[int, int]]()

    for lost in ("3-5000-a", "1-7000-b", "9-6000-c"):
        stamp = store.write(stamp, "{}", change, lost=lost) or ""
        found.append((version_of(stamp), written_at(stamp)))

    assert found == [(4, 5000), (5, 7000), (10, 7000)]


def test_announcement_of_a_worker_replaces_the_one_before_and_expires_without_the_document(
    store: StoreInStorage, redis_client: redis.Redis
) -> None:
    change: Any = {"what": "set"}
    store.write("", "{}", change)
    before, after = Worker("shop:1", 1, "limits"), Worker("shop:1", 2, "limits")

    store.announce(before, None)
    store.announce(after, before)

    left: Any = redis_client.pttl(store.workers_key)
    assert 0 < left <= ANNOUNCED_SECONDS * 1000
    assert redis_client.zrange(store.workers_key, 0, -1) == [b"shop:1 2 limits"]
    assert redis_client.ttl(store.key) == -1


@pytest.mark.parametrize("kept_in", ["memory", "server"])
def test_history_keeps_and_returns_the_latest_changes(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kept_in: str
) -> None:
    monkeypatch.setattr(store_module, "MOST_CHANGES", 3)
    shop = shop_on("memory://" if kept_in == "memory" else request.getfixturevalue("on_server"))
    for n in range(5):
        shop.control.note("reset", f"user:{n}")

    kept, latest = ([each["entry"] for each in shop.control.history(most)] for most in (9, 2))

    assert (kept, latest) == (["user:4", "user:3", "user:2"], ["user:4", "user:3"])
