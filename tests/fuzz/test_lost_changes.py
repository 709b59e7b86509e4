"""Changes, losses and looks of workers in random order: what is in force in the end is what a model says."""

from dataclasses import dataclass, replace
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from flask_multilimit.control.control import Control
from flask_multilimit.control.document import Document, document_from
from flask_multilimit.control.store import Change, StoredDocument, version_of, written_at
from flask_multilimit.control.watch import ControlFollower
from support.effort import tries

ONE, TWO, THREE = "10.0.0.1", "10.0.0.2", "10.0.0.3"
WORKERS = range(3)

Step = tuple[Any, ...]
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.sampled_from(["allow", "deny", "undo"]), st.sampled_from([ONE, TWO])),
    st.tuples(st.just("look"), st.sampled_from(WORKERS)),
    st.sampled_from([("save",), ("lose",), ("lose",), ("delete",)]),
)


class LossyStore:
    """A store whose server may be replaced by one that has lost changes. Its clock advances with each change."""

    shared = runs = True

    def __init__(self) -> None:
        self._now, self._run = 1000, 0
        self._kept: tuple[str, str, tuple[Change, ...]] = ("", "", ())
        self.save()

    def read(self, known: str) -> StoredDocument:
        stamp, text, _ = self._kept
        run = f"run {self._run}" if stamp or known else ""
        return StoredDocument(stamp, "" if known == stamp else text, self._now, run)

    def write(self, seen: str, text: str, change: Change, *, lost: str = "") -> str:
        self._now += 1
        written = max(written_at(seen), written_at(lost)) if lost else self._now * 1000
        stamp = f"{max(version_of(seen), version_of(lost)) + 1}-{written}-{self._now}"
        self._kept = (stamp, text, ({**change, "at": self._now}, *self._kept[2]))
        return stamp

    def history(self, most: int) -> list[Change]:
        return [*self._kept[2][:most]]

    def save(self) -> None:
        self._saved = self._kept

    def lose(self) -> None:
        self._kept, self._run = self._saved, self._run + 1

    def delete(self) -> None:
        self._kept = ("", "", ())

    @property
    def document(self) -> Document:
        text = self._kept[1]
        return document_from(text) if text else Document()


class Follower(ControlFollower):
    """Asks only when told to."""

    def __init__(self, store: Any) -> None:
        super().__init__(store, take=lambda _: None, report=lambda _: None, logger=None)

    def _follow(self) -> None: ...


def operate(store: Any, what: str, who: str) -> None:
    """Let an operator whose process knows nothing make a change."""
    app: Any = SimpleNamespace(
        validate=lambda *_: None, warning=lambda *_: "", differences=lambda *_: (), idle=None, unfit=None
    )
    control = Control(store, Follower(store), app)
    if what != "undo":
        getattr(control, what)(who, lasting=True, author="ann", force=True)
    for each in control.entries() if what == "undo" else ():
        if str(each.who) == who:
            control.undo(each.id)


class Entry(NamedTuple):
    number: int
    """Of the change that made it."""
    what: str
    who: str


@dataclass
class Known:
    """What the server has, or what a worker knows of it."""

    entries: tuple[Entry, ...] = ()
    changed: tuple[tuple[int, Entry], ...] = ()
    """The number of each change, and the entries that it made, undid or replaced."""
    version: int = 0
    written: int = 0
    stamp: int = 0
    run: int = 0


class Model:
    """What must be in force: lost entries, unless the same was made, undone or replaced since, and what was made
    since."""

    def __init__(self) -> None:
        self.server, self._saved, self._numbers = Known(), Known(), count(1)
        self._workers = [Known() for _ in WORKERS]

    def change(self, what: str, who: str) -> None:
        server, number = self.server, next(self._numbers)
        before = [each for each in server.entries if each.who == who]
        if what == "undo" and not before:
            return
        new = () if what == "undo" else (Entry(number, what, who),)
        self.server = Known(
            entries=(*(each for each in server.entries if each.who != who), *new),
            changed=(*server.changed, *((number, each) for each in (*before, *new))),
            version=server.version + 1,
            written=number,
            stamp=number,
            run=server.run,
        )

    def save(self) -> None:
        self._saved = self.server

    def lose(self) -> None:
        self.server = replace(self._saved, run=self.server.run + 1)

    def delete(self) -> None:
        self.server = Known(run=self.server.run)

    def look(self, worker: int) -> None:
        server, known = self.server, self._workers[worker]
        if server.stamp == known.stamp or server.version > known.version or server.run == known.run:
            self._workers[worker] = server
            return
        changed = {(each.what, each.who) for at, each in server.changed if at > known.written}
        new = [each for each in server.entries if each.number > known.written]
        others = {each.who for each in new}
        kept = [each for each in known.entries if (each.what, each.who) not in changed and each.who not in others]
        self.server = replace(
            server,
            entries=(*kept, *new),
            version=max(server.version, known.version) + 1,
            written=max(server.written, known.written),
            stamp=next(self._numbers),
        )


@tries(10)
@given(st.lists(STEPS, min_size=10, max_size=25), st.permutations(WORKERS))
@example([("deny", ONE), ("save",), ("undo", ONE), ("look", 0), ("lose",), ("deny", TWO)], [0, 1, 2])
@example([("deny", ONE), ("save",), ("deny", TWO), ("look", 0), ("lose",), ("undo", ONE)], [0, 1, 2])
@example([("deny", ONE), ("look", 0), ("save",), ("lose",), ("look", 0), ("delete",)], [0, 1, 2])
@example([("deny", ONE), ("look", 1), ("undo", ONE), ("look", 0), ("lose",), ("deny", TWO)], [1, 0, 2])
@example([("deny", ONE), ("save",), ("allow", ONE), ("look", 0), ("lose",), ("deny", TWO)], [0, 1, 2])
@example([("deny", ONE), ("look", 0), ("lose",), ("deny", ONE), ("undo", ONE)], [0, 1, 2])
@example([("deny", ONE), ("save",), ("deny", ONE), ("look", 0), ("lose",), ("undo", ONE)], [0, 1, 2])
@example(
    [("deny", ONE), ("save",), ("deny", TWO), ("deny", THREE), ("look", 0), ("lose",), ("allow", ONE), ("undo", ONE)],
    [0, 1, 2],
)
def test_every_worker_has_in_force_what_was_changed_last_although_servers_lost_changes(
    steps: list[Step], order: list[int]
) -> None:
    store, model = LossyStore(), Model()
    workers = [Follower(store) for _ in WORKERS]
    for what, *arguments in [*steps, *(("look", worker) for _ in range(3) for worker in order)]:
        if what == "look":
            for _ in range(2):  # the first answer shows a loss, and the second one what was put back
                workers[arguments[0]].ask()
                model.look(arguments[0])
        elif what in {"save", "lose", "delete"}:
            getattr(store, what)()
            getattr(model, what)()
        else:
            operate(store, what, arguments[0])
            model.change(what, arguments[0])

    expected = [f"{each.what} {each.who}" for each in model.server.entries]
    for document in (store.document, *(each.document for each in workers)):
        assert [str(each) for each in document.entries] == expected
