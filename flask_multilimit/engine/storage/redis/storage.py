"""Redis and Valkey: one EVALSHA per check."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from itertools import islice
from threading import RLock
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID
from weakref import WeakMethod

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError

from ...algorithms import concurrency
from ...decision import Charge, Decision, decision_of
from ...errors import ConfigurationError, StorageError
from ...forks import notify_child
from ...hits import PEEK_ID, Hit, Hits, bans_of, calendars_of, memoized, new_id, packed_ban
from ...reply import completed
from ..addresses import shown_storage
from ..base import Lost, Slot, StoredKey, check_clock, check_timeout
from ..tallies import Tallies, Tally, arguments_of, seconds_of, tallies_of
from .compiled import SHAPES, KnownShape
from .connections import Deadline
from .failures import FAILURES, NONE_FREE, is_full, storage_error
from .scripts import Script, lone_script, read_all, script_for
from .uri import address_of, check_client, timed_client
from .wire import command_of, wire_of

if TYPE_CHECKING:
    from .sentinel import Primary

read_all()

CHECK: bytes = b""
"""The mode of a plain check, neither a peek nor repeated. A missing argument means the same."""
SERVER_CLOCK: bytes = b""
"""In place of an instant: the script reads the server's own clock."""

PACKED_BOUNDARIES = 48
"""The length of the packed boundaries of one calendar, in bytes."""
LATEST = 4_000_000_000_000_000
"""The latest time that a server's clock may show, in microseconds since 1970: the year 2096."""

GONE = -2
"""The answer to PTTL for a key that does not exist any more."""


class RedisStorage:
    """Quotas in a server that all processes share.

    ``client`` is a client object of ``redis`` (``Redis``, a Sentinel's master). It belongs to the caller, and its
    time-outs and retries stay as they are. (If it is plain and does not retry, a :class:`~.wire.Wire` asks the server,
    in half the time.) ``clock``, for tests, returns microseconds and replaces the server's clock.
    """

    shared = True

    def __init__(
        self, client: Any, *, clock: Callable[[], int] | None = None, deadline: Deadline | None = None
    ) -> None:
        ask = None if isinstance(client, type) else getattr(client, "execute_command", None)
        if not callable(ask) or iscoroutinefunction(ask):
            raise ConfigurationError(
                f"client={shown_storage(client)}: give a client object of redis that is not async; "
                "for a URI, storage_from_uri(URI)"
            )
        check_client(client)
        if clock is not None:
            check_clock(clock)
        self._client = client
        self._deadline = deadline or Deadline(None)
        self._wire = wire_of(client, self._deadline)
        self.clock = clock
        self._owns_client = False
        self._primary: Primary | None = None
        self._ahead = 0  # microseconds by which the server's clock is ahead, as far as known
        notify_child(self)

    @classmethod
    def from_url(cls, url: str, *, timeout: float, given: str = "") -> RedisStorage:
        """A storage with its own client. It connects within ``timeout`` seconds, answers within ``timeout`` seconds,
        and does not retry by itself (redis-py's defaults wait for seconds). Only the look-up of a host name by the
        system may take longer. Errors show ``url``, or the URI that the user has ``given`` in its place."""
        if not isinstance(url, str):
            raise ConfigurationError(f"url={shown_storage(url)}: give text, such as redis://localhost:6379/0")
        check_timeout(timeout)
        deadline = Deadline(timeout)
        client = timed_client(url, deadline, given=given)
        storage = cls(client, deadline=deadline)
        storage._owns_client = True
        storage._primary = client.connection_pool.connection_kwargs.get("primary")
        if storage._primary is not None:
            storage._primary.close_idle = WeakMethod(storage._leave_server)
        return storage

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        started = monotonic()
        if check_id is not None:
            self._deadline.start(started)
            return self._decide(b"repeat", hits, check_id.bytes)
        new = new_id()
        try:
            if self._wire is not None and self.clock is None:  # nearly always: all but the id is packed already
                start, end, safe_to_repeat, frame, is_complete, shape = memoized(hits, _prepared)
                if not is_complete:
                    start, end, frame = self._complete(hits, shape)
                answer = self._wire.ask(start + new + end, started, check_open=not safe_to_repeat)
                reply = completed(answer, len(hits), frame)
                if reply is not None:
                    return decision_of(new, hits, reply, "storage")
                if not self._is_outside(hits, answer):
                    raise self._malformed(hits, answer)
            self._deadline.start(started)
            return self._decide(CHECK, hits, new)
        except (*FAILURES, StorageError) as error:
            self._deadline.start(started)
            try:
                return self._ask_again(error, hits, new)
            except StorageError as failure:
                failure.check_id = UUID(bytes=new)
                raise

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        self._deadline.start()
        return self._decide(b"peek", hits, PEEK_ID)

    def strike(self, hits: tuple[Hit, ...], check_id: UUID) -> Decision:
        """As :meth:`peek`, for the part of the check ``check_id`` in one hash slot, when another part refuses. A
        refusal here is a strike, too."""
        self._deadline.start()
        return self._decision(PEEK_ID, hits, self._run("check", hits, b"refused", check_id.bytes))

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        self._deadline.start()
        mode = CHECK if ids is None else b"repeat"
        id_of_each = [new_id() for _ in many] if ids is None else [id_.bytes for id_ in ids]
        sent, checks = set[Script](), list[tuple[bytes, ...]]()
        for hits, id_ in zip(many, id_of_each, strict=True):
            script, arguments = self._call_of("check", hits, mode, id_)
            if arguments[-1] == SERVER_CLOCK:  # as if it were missing
                arguments.pop()
            call = (b"EVALSHA", script.sha) if script in sent else (b"EVAL", script.text)  # the server keeps it
            sent.add(script)
            checks.append((call[0], call[1].encode(), *arguments))
        decisions, failures = list[Decision](), list[StorageError]()
        try:
            replies = self._when_free(self.ask_each, checks) if many else []
            for id_, hits, reply in zip(id_of_each, many, replies, strict=True):
                try:
                    lacks_script = isinstance(reply, NoScriptError)  # the server has refused the check that had it
                    if isinstance(reply, Exception) and not lacks_script:
                        raise self._failure(reply)
                    ask_again = lacks_script or self._is_outside(hits, reply)
                    decisions.append(self._decide(mode, hits, id_) if ask_again else self._decision(id_, hits, reply))
                except StorageError as failure:  # noqa: PERF203 - one failure must not stop the others
                    failures.append(failure)
            if failures:
                raise min(failures, key=lambda failure: failure.key_specific)
            return decisions
        except StorageError as failure:
            failure.check_ids = [UUID(bytes=id_) for id_ in id_of_each]
            failure.decisions = {decision.id: decision for decision in decisions}
            raise

    def settle(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        self._deadline.start()
        hits = tuple(charge.hit for charge in charges)
        numbers = [number for charge in charges for number in (charge.until, charge.units)]
        self._run("settle", hits, b"", check_id.bytes, *numbers)

    def tally(self, tallies: Sequence[Tally], *, source: str, number: int) -> float:
        self._deadline.start()
        return seconds_of(self._evaluate(lone_script("tally"), arguments_of(tallies, source, number)))

    def tallies(self, keys: Sequence[str]) -> Tallies:
        self._deadline.start()
        arguments = [b"%d" % len(keys), *[key.encode() for key in keys]]
        return tallies_of(self._evaluate(lone_script("tallies"), arguments), len(keys))

    def release(self, slots: Sequence[Slot], lost: Lost | None = None) -> None:
        if lost is None or self._wire is None or self._wire.waits or len(slots) > 1:
            self._release(slots)
        else:  # nearly always
            ((check_id, hit),) = slots
            command = check_id.join(_release_parts(hit.key, hit.cost))
            try:
                self._wire.send(command, monotonic(), lost)
            except FAILURES as error:
                raise self._failure(error) from error

    def _release(self, slots: Sequence[Slot]) -> None:
        self._deadline.start()
        commands = [concurrency.release_command(hit.key.encode(), hit.cost, check_id) for check_id, hit in slots]
        for reply in self._when_free(self.ask_each, commands):
            if isinstance(reply, Exception):
                raise self._failure(reply)
            if type(reply) is not int:
                raise StorageError(f"the reply to a release has the wrong shape: {reply!r:.80}")

    def confirm(self) -> None:
        if self._wire is not None:
            self._wire.confirm()

    def renew(self, slots: Sequence[Slot]) -> None:
        self._deadline.start()
        ids = b"".join([slot.check_id for slot in slots])
        self._run("renew", tuple([slot.hit for slot in slots]), b"", ids)

    def ask_each(self, commands: Sequence[tuple[bytes, ...]]) -> list[Any]:
        """The answers to ``commands``, in one round trip; some may be errors. Raises errors of ``redis``."""
        if self._wire is not None:
            return self._wire.ask_all([command_of(*command) for command in commands], self._deadline.started)
        if len(commands) == 1 or not hasattr(self._client, "pipeline"):
            return [self._send(*command) for command in commands]
        with self._client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            # An error raised by redis-py would show the command, with subjects.
            answers: list[Any] = self._by_client(pipeline.execute, False)
        return answers

    def reset(self, keys: Sequence[str]) -> None:
        self._deadline.start()
        if keys:
            self.ask(b"UNLINK", *[key.encode() for key in keys])

    def ask(self, *command: bytes) -> Any:
        """The server's answer to ``command``. Raises :class:`StorageError`. The caller starts the deadline."""
        return self._when_free(self._send, *command)

    @property
    def address(self) -> str:
        """The address of the server, without user and password; empty if it is not known."""
        return address_of(self._client)

    @property
    def client(self) -> Any:
        """The client object of ``redis``."""
        self._deadline.stop()
        return self._client

    def keys(self, prefix: str, limit: int | None = None, *, containing: str = "") -> list[StoredKey]:
        """The keys that SCAN finds, which does not block the server; with a ``limit``, the first ones that it finds."""
        self._deadline.stop()
        parts = (prefix, containing, "") if containing else (prefix, "")
        pattern = "*".join(re.sub(r"([*?\[\]\\^])", r"\\\1", part) for part in parts)
        scan = partial(self._client.scan_iter, pattern, count=1000)
        keys = self._when_free(self._by_client, lambda: sorted(set(islice(scan(), limit))))
        with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.pttl(key)
            ttls = self._when_free(self._by_client, pipeline.execute)
        return [
            StoredKey(key if isinstance(key, str) else key.decode(errors="replace"), None if ttl < 0 else ttl / 1000)
            for key, ttl in zip(keys, ttls, strict=True)
            if ttl != GONE
        ]

    def run_script(self, script: str, keys: Sequence[str], arguments: Sequence[bytes]) -> Any:
        """Run ``script``. Its reply may be long, so each step has the timeout of the sockets."""
        self._deadline.stop()
        all_arguments = [script.encode(), b"%d" % len(keys), *[key.encode() for key in keys], *arguments]
        return self._when_free(self._by_client, self._client.execute_command, "EVAL", *all_arguments)

    def close(self) -> None:
        if self._wire is not None:
            self._wire.confirm()
            self._wire.close()
        if self._owns_client:
            disconnect_idle(self._client)
        if self._primary is not None:
            self._primary.close()

    def _ask_again(self, error: Exception, hits: tuple[Hit, ...], check_id: bytes) -> Decision:
        """Ask again if that may help: with the text of the script, or with the id by which the server knows whether the
        charge was made before the connection was lost."""
        try:
            if isinstance(error, NoScriptError):
                self._deadline.start()  # the server has answered: the next question gets its full time
                return self._load(hits, check_id)
            raise error if isinstance(error, StorageError) else self._failure(error)  # which has its cause
        except StorageError as failure:
            if type(failure.__cause__) is not RedisConnectionError or not remembers_ids(hits):
                raise
        return self._decide(b"repeat", hits, check_id)

    def _decide(self, mode: bytes, hits: tuple[Hit, ...], check_id: bytes) -> Decision:
        return self._decision(check_id, hits, self._run("check", hits, mode, check_id))

    def _load(self, hits: tuple[Hit, ...], check_id: bytes) -> Decision:
        """Check ``hits`` with the text of their script."""
        script, arguments, more = _plain_call(hits, SHAPES.of(hits))
        answer = self.ask(b"EVAL", script.text.encode(), *arguments, check_id, *more, *self._boundaries(hits))
        if self._is_outside(hits, answer):
            return self._decide(CHECK, hits, check_id)
        return self._decision(check_id, hits, answer, script.frame)

    def _run(self, driver: str, hits: tuple[Hit, ...], mode: bytes, check_id: bytes, *more: int) -> Any:
        answer = self._evaluate(*self._call_of(driver, hits, mode, check_id, *more))
        if self._is_outside(hits, answer):
            return self._evaluate(*self._call_of(driver, hits, mode, check_id, *more))
        return answer

    def _evaluate(self, script: Script, arguments: Sequence[bytes]) -> Any:
        try:
            return self._send(b"EVALSHA", script.sha.encode(), *arguments)
        except NoScriptError:
            pass  # not loaded yet, flushed, or a fail-over went to a server that never had it
        except FAILURES as error:
            raise self._failure(error) from error
        return self.ask(b"EVAL", script.text.encode(), *arguments)

    def _send(self, *command: bytes) -> Any:
        if self._wire is not None:
            return self._wire.ask(command_of(*command), self._deadline.started)
        return self._by_client(self._client.execute_command, command[0].decode(), *command[1:])

    def _by_client(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """What ``ask``, of the client, returns. If it raises anything but an error of ``redis``, such as the exception
        of a signal handler, the client may keep a connection with an unread answer, and take that for the answer to its
        next command: about another subject. So close its idle connections, and the only one of a client with one."""
        try:
            return ask(*arguments)
        except RedisError:
            raise
        except BaseException:
            if (single := getattr(self._client, "connection", None)) is not None:
                single.disconnect()
            disconnect_idle(self._client)
            raise

    def _call_of(
        self, driver: str, hits: tuple[Hit, ...], mode: bytes, check_id: bytes, *more: int
    ) -> tuple[Script, list[bytes]]:
        now = SERVER_CLOCK if self.clock is None else b"%d" % self.clock()
        script, arguments = _start_of_call(driver, hits)
        numbers = [b"%d" % number for number in more]
        return script, [*arguments, check_id, mode, now, *numbers, *self._boundaries(hits)]

    def _decision(
        self, check_id: bytes, hits: tuple[Hit, ...], answer: Any, frame: list[int] | None = None
    ) -> Decision:
        reply = completed(answer, len(hits), frame)
        if reply is None:
            raise self._malformed(hits, answer)
        return decision_of(check_id, hits, reply, "storage")

    def _malformed(self, hits: tuple[Hit, ...], reply: Any) -> StorageError:
        self._leave_server()  # if its answers are one behind, the next would be that to another check
        return StorageError(f"the reply to a check of {len(hits)} hits has the wrong shape: {reply!r:.80}")

    # Calendars: a check carries the boundaries around the server's time, as far as this process knows it

    def _boundaries(self, hits: tuple[Hit, ...]) -> list[bytes]:
        """The last argument of a script, if there are calendars among ``hits``."""
        calendars = calendars_of(hits)
        if not calendars:
            return []
        now = time_ns() // 1000 + self._ahead if self.clock is None else self.clock()
        return [b"".join([periods.packed_around(now) for periods in calendars])]

    def _is_outside(self, hits: tuple[Hit, ...], answer: Any) -> bool:
        """Whether ``answer`` says that the server's time is outside of the boundaries that were sent. If so, learn the
        server's time."""
        if type(answer) is not list or len(answer) != 1 or not calendars_of(hits):
            return False
        if type(answer[0]) is not int:
            raise self._malformed(hits, answer)
        if not 0 <= answer[0] <= LATEST:
            raise StorageError(f"the server's clock shows {answer[0]} microseconds since 1970; set it")
        self._ahead = answer[0] - time_ns() // 1000
        return True

    def _complete(self, hits: tuple[Hit, ...], shape: KnownShape | None) -> tuple[bytes, bytes, list[int] | None]:
        """The parts of a command that is not the same each time, and the frame of its reply."""
        if shape is not None and SHAPES.count_check(shape) and isinstance(hits, Hits):
            hits.cache.pop(_prepared, None)  # its script is compiled now
        start, end, _, frame, _, _ = memoized(hits, _prepared)
        for boundaries in self._boundaries(hits):
            end += boundaries + b"\r\n"
        return start, end, frame

    def _when_free(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """What ``ask`` returns, as soon as a connection is free for it. Raises :class:`StorageError`."""
        until = min(monotonic(), self._deadline.started) + (self._deadline.seconds or 0)
        while True:
            try:
                return ask(*arguments)
            except FAILURES as error:  # noqa: PERF203 - to try again
                if str(error) != NONE_FREE or self._wire is None or not self._wire.make_room(until):
                    raise self._failure(error) from error

    def _failure(self, error: Exception) -> StorageError:
        """The error to raise from ``error``. If the server is lost, close all idle connections to it, because otherwise
        each of them would have to fail by itself. A server that only refuses another connection is not lost."""
        failure = storage_error(error, self.address)
        is_replica = failure.server_code == "READONLY"
        if is_replica or (failure.no_reply and not is_full(error)):
            self._leave_server(is_replica=is_replica)
        return failure

    def _after_fork_in_child(self) -> None:
        renew_in_child(self._client)

    def _leave_server(self, *, is_replica: bool = False) -> None:
        """Close idle connections to the server. A client of the user keeps its own, unless they lead to a replica: a
        replica stays alive, so they would not end by themselves."""
        if self._wire is not None:
            self._wire.close()
        if self._owns_client or is_replica:
            disconnect_idle(self._client)


def renew_in_child(client: Any) -> None:
    """Give ``client`` new locks in a forked child: another thread of the parent may have held them, and redis-py 8
    takes them before it notices the fork. Leave its only connection, if it has one, to the parent."""
    pool: Any = getattr(client, "connection_pool", None)
    for one in (pool, getattr(pool, "_event_dispatcher", pool)):
        if hasattr(one, "_lock"):
            one._lock = RLock()
    if isinstance(client, Redis) and client.connection is not None:
        client.connection, client.single_connection_lock = None, RLock()
    for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
        renew_in_child(sentinel)


def disconnect_idle(client: Any) -> None:
    """Close the idle connections of ``client``. ``close()`` of redis-py also closes those that another thread uses."""
    pool = getattr(client, "connection_pool", None)
    if pool is not None:
        try:
            pool.disconnect(inuse_connections=False)
        except TypeError:  # BlockingConnectionPool before redis-py 7 closes those in use, too, or none
            idle = getattr(pool, "pool", None)
            with getattr(idle, "mutex", nullcontext()):  # no other thread takes one meanwhile
                for connection in filter(None, getattr(idle, "queue", ())):
                    connection.disconnect()


def _start_of_call(driver: str, hits: tuple[Hit, ...]) -> tuple[Script, list[bytes]]:
    """The script and its arguments up to the id, as the header of each Lua driver describes them."""
    packed = [*[hit.packed for hit in hits], *map(packed_ban, bans_of(hits))]
    return script_for(driver, hits), [*_packed_keys(hits), b"".join(packed)]


def _plain_call(hits: tuple[Hit, ...], known: KnownShape | None) -> tuple[Script, list[bytes], tuple[bytes, ...]]:
    """The script of a plain check, the compiled one if its shape has one; its arguments up to the id; and those between
    the id and the boundaries of calendars."""
    if known is not None and known.script is not None:
        return known.script, _packed_keys(hits), ()
    return *_start_of_call("check", hits), (CHECK, SERVER_CLOCK)


def _packed_keys(hits: tuple[Hit, ...]) -> list[bytes]:
    return [b"%d" % len(hits), *[hit.key.encode() for hit in hits]]


_ANY_ID = b"\xff" * 16
"""In place of an id: bytes that no key contains."""


class _Prepared(NamedTuple):
    """A check of some hits, ready to be sent."""

    start: bytes
    """The command up to the id."""
    end: bytes
    """The command from the id on; with calendars, up to their boundaries."""
    safe_to_repeat: bool
    """Whether the server would recognise a repetition by its id."""
    frame: list[int] | None
    """What the reply leaves out (:func:`.completed`)."""
    is_complete: bool
    """Whether the command is the same each time: it has no boundaries, and its script stays."""
    shape: KnownShape | None
    """The shape, if it may be compiled later."""


def _prepared(hits: tuple[Hit, ...]) -> _Prepared:
    known = SHAPES.of(hits)
    script, arguments, more = _plain_call(hits, known)
    blank = bytes(PACKED_BOUNDARIES * len(calendars_of(hits)))
    after_id = [*more, blank] if blank else []
    start, end = command_of(b"EVALSHA", script.sha.encode(), *arguments, _ANY_ID, *after_id).split(_ANY_ID)
    if blank:
        end = end.removesuffix(blank + b"\r\n")
    shape = None if known is None or known.script is not None else known
    return _Prepared(start, end, remembers_ids(hits), script.frame, shape is None and not blank, shape)


@lru_cache(maxsize=1024)
def _release_parts(key: str, cost: int) -> list[bytes]:
    """The packed command, split where the id goes."""
    return command_of(*concurrency.release_command(key.encode(), cost, _ANY_ID)).split(_ANY_ID)


def remembers_ids(hits: tuple[Hit, ...]) -> bool:
    """Whether a check of ``hits`` can be recognised if it is repeated with its id."""
    return any(hit.cost and hit.rule.implementation.recognise and not hit.shadow for hit in hits)
