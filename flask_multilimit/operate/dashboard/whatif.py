"""The page What if: what counts would have done to recorded traffic, or to a log that somebody uploads.

``flask multilimit suggest --html`` writes the same page as one file, which needs nothing but a browser.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from flask import Response, request
from markupsafe import Markup
from werkzeug.datastructures import FileStorage
from werkzeug.exceptions import BadRequest, Forbidden, TooManyRequests

from ...declare.subjects import EVERYONE, LimitType
from ...engine import ConfigurationError, Rule
from ...engine.errors import brief, message_of
from ...engine.rules import changed
from ...engine.text import LONGEST_NAME, LONGEST_SUBJECT, Phrase, visible, visible_page
from ...insight.limits import limiters_of, places_of
from ...insight.text import subject_text
from ...insight.traffic import looking
from ...observe.traffic.counts import short
from ...serve.gate import gate_in_force
from ..blueprints import hash_source
from ..simulate.formats import format_of
from ..simulate.logged import MICROSECONDS
from ..simulate.questions import arrivals_of, share_from
from ..simulate.reading import LeftOut, Logs
from ..simulate.recorded import NAME, newest_files, recordings_of
from ..simulate.suggest import (
    Counted,
    Peaks,
    Suggestion,
    Traffic,
    curve,
    declaration,
    name_of,
    suggest_for,
    traffic_of,
    window_of,
)
from .forms import is_from_other_site, require_own_form
from .shell import STATIC, TEMPLATES, render, url
from .visit import require_few_uploads

MOST_UPLOADED = 5_000_000
"""The most bytes of an uploaded log."""
MOST_UNPACKED = 10_000_000
"""The most bytes that are read of it; a packed log may contain more."""
MOST_RECORDED = 8_000_000
"""The most bytes that are read of what was recorded."""
MOST_REQUESTS = 40_000
MOST_CLIENTS = 10_000
"""The most requests and clients that count, so that an answer takes seconds."""
MOST_NAMED = 200
"""The number of clients that a page names, those with the largest peaks."""
TYPES = tuple(dict.fromkeys(each.value for each in LimitType))

TOO_LARGE = Phrase("This is more than 5 MB. Upload a part of the log, or compress it: gzip access.log")
BUSY = "Another log is being read. Try again in a few seconds."
FOREIGN = "Another site opened this page, so no traffic was read. Send the form to read it."

WANTED, IN_FORCE = "asked", "in force"
FEW_REQUESTS, FEW_CLIENTS, BELOW_GAP = "few requests", "few clients", "below a gap"
REMARKS = {
    WANTED: "asked for",
    IN_FORCE: "in force now",
    FEW_REQUESTS: "the smallest that refuses at most {share} of the requests",
    FEW_CLIENTS: "the smallest that refuses at most {share} of the clients",
    BELOW_GAP: "all clients but a few that made far more",
}
"""Why a count is in the table."""

WORDS = {
    "picture": "Clients sorted by the most requests they made in any {window}",
    "share": "{share} of clients",
    "most": "At most",
    "per": "per {window}",
    "count": "Count per {window}",
    "requests": "requests refused",
    "clients": "clients ever refused",
    "bound": "at most {part}",
    "part": "{part} of {whole} ({share})",
    "small": "more than half of the clients are refused: too small",
    "who": "who",
    "peak": "most in {window}",
    "made": "requests",
    "more": "and {many} more",
}
"""What ``slider.js`` says."""

TEMPLATES.globals["remarks"] = REMARKS

_readers: dict[int, object] = {}
"""Who reads a log, by process: a forked child begins without. No lock, because a signal handler may raise between the
taking of a lock and the block that releases it."""


@dataclass(frozen=True)
class Client:
    """One of the busiest clients."""

    name: str
    most: int
    """Requests in any window."""
    requests: int
    link: str = ""
    """Its page Subject, if there is one."""


@dataclass(frozen=True)
class WhatIf:
    """What the traffic says about counts."""

    source: str
    """``recorded``, or the name of a file."""
    requests: int
    clients: int
    first: float
    """Seconds since 1970, as ``last``."""
    last: float
    peaks: Peaks
    """The most requests of a client in any window, over all clients."""
    counts: list[Counted]
    """From the smallest."""
    distribution: list[list[int]]
    """``[most requests in any window, clients with so many]``, from the smallest."""
    busiest: list[Client]
    declaration: str
    """The decorator to paste."""
    chosen: int
    """The count that was asked for; or else the one below a gap, if there is one; or else the smallest that refuses at
    most the given share of requests."""
    refuse_at_most: str
    left_out: list[LeftOut]

    def slider(self, t: Callable[[str], str], window: str) -> Markup:
        """The element that ``slider.js`` turns into a slider, in the language of ``t`` and ``window``. No text can end
        the element."""
        data = {
            "window": window,
            "words": {name: t(text) for name, text in WORDS.items()},
            "requests": self.requests,
            "clients": self.clients,
            "chosen": self.chosen,
            "peaks": self.distribution,
            "curve": [[each.count, each.requests] for each in self.counts],
            "names": [[visible(each.name), each.most, each.requests, each.link] for each in self.busiest],
        }
        text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
        return Markup('<div class="peaks"><script type="application/json">{}</script></div>').format(Markup(text))


@dataclass(frozen=True, slots=True)
class WhatIfForm:
    """Which requests to look at, and how."""

    endpoint: str = ""
    """Empty for the whole app."""
    type: str = LimitType.IP.value
    window: str = "60"
    """Seconds, or the period of a calendar: ``calendar month``."""
    refuse_at_most: str = "0.1%"
    """The share of requests, and of clients, that may be refused."""
    count: str = ""
    """Empty: the smallest that refuses at most the given share."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> WhatIfForm:
        """The form that was sent. Fields that are missing or empty have their defaults."""
        texts = {name: given.get(name, "")[:LONGEST_NAME].strip() for name in cls.__slots__}
        return cls(**{name: text for name, text in texts.items() if text})

    def rule(self) -> Rule:
        """The rule with the count, or with 1. Raises :class:`ConfigurationError`."""
        try:
            count = int(self.count or 1)
        except ValueError:
            raise ConfigurationError(Phrase("give the count as a number")) from None
        return changed(window_of(self.window), count=count)


# Where the requests come from


def of_recorded(form: WhatIfForm) -> WhatIf | None:
    """The answer for recorded requests; ``None`` if nothing records. Raises :class:`ConfigurationError`, and
    :exc:`Forbidden` if another site asks: it would learn nothing, but could keep a thread busy."""
    folders = [each.folder for each in recordings_of(gate_in_force().app)]
    if not folders:
        return None
    if is_from_other_site():
        raise Forbidden(FOREIGN)
    with _one_at_a_time(), TemporaryDirectory(prefix="multilimit-") as folder:
        paths, since = newest_files(folders, Path(folder), MOST_RECORDED)
        return _answer(form, Logs(paths, format_of(NAME), since=since), "recorded", _by_hash(form.type))


def of_upload(form: WhatIfForm, log: FileStorage) -> WhatIf:
    """The answer for a log in any format that is recognised, packed or not. Raises :class:`ConfigurationError`."""
    with _one_at_a_time(), TemporaryDirectory(prefix="multilimit-") as folder:
        path = Path(folder) / "log"
        log.save(path)
        return _answer(form, Logs([path], most_bytes=MOST_UNPACKED), log.filename or "")


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Read no other log in this process meanwhile, as it takes seconds. Raises :exc:`TooManyRequests`."""
    process, reader = os.getpid(), object()
    try:
        if _readers.setdefault(process, reader) is not reader:
            raise TooManyRequests(BUSY, retry_after=5)
        yield
    finally:
        if process in _readers and _readers[process] is reader:  # no call, at whose end a signal handler may raise
            del _readers[process]


def _by_hash(type_name: str) -> Mapping[str, str]:
    """The subjects that were refused in the last hour, by the hashes that recorders write in their place."""
    gate = gate_in_force()
    with looking(gate) as memory:
        if memory is None:
            return {}
        known = memory.refusals.most(MOST_CLIENTS, lambda who: who.type == type_name)
    hashes = [each.hashed for each in recordings_of(gate.app)]
    return {hashed(who.subject): who.subject for who, _ in known for hashed in hashes}


def _with_link(client: Client, type_name: str, by_hash: Mapping[str, str] | None) -> Client:
    """A client as the page Now shows it: if its name is known, with that and a link."""
    subject = client.name if by_hash is None else by_hash.get(client.name)
    if subject is None or type_name == EVERYONE.type:
        return client
    return replace(client, name=subject_text(type_name, subject), link=url("subject", type=type_name, value=subject))


def _answer(form: WhatIfForm, logs: Logs, source: str, by_hash: Mapping[str, str] | None = None) -> WhatIf:
    if form.type not in TYPES:
        raise ConfigurationError(
            Phrase("{given}: give one of {types}", given=f"type={brief(form.type)}", types=", ".join(TYPES))
        )
    share, rule = share_from(form.refuse_at_most), form.rule()
    first = list(islice(logs, MOST_REQUESTS + 1))
    app, endpoint = gate_in_force().app, form.endpoint or None
    arrivals = arrivals_of(app, first[:MOST_REQUESTS], type=form.type, endpoint=endpoint, most_subjects=MOST_CLIENTS)
    traffic = traffic_of(arrivals, [window_of(form.window)])
    found = suggest_for(traffic, share)
    left_out = [each for file in logs.files for each in file.problems()]
    if len(first) > MOST_REQUESTS or len(arrivals) >= MOST_CLIENTS:
        left_out.append(LeftOut(Phrase("only the first {n} requests count", n=f"{arrivals.requests:,}"), 0))
    answer = what_if(
        traffic,
        found,
        source=source,
        wanted_count=rule.count if form.count else None,
        in_force=_in_force(form, rule),
        refuse_at_most=form.refuse_at_most,
        left_out=left_out,
    )
    return replace(answer, busiest=[_with_link(each, form.type, by_hash) for each in answer.busiest])


def _in_force(form: WhatIfForm, wanted: Rule) -> set[int]:
    """The counts of rules of this type and window that apply to the endpoint now, without shadows."""
    planned = (each.planned for each in limiters_of(gate_in_force(), form.endpoint))
    limiters = [each for each in planned if each.declaration.type_name == form.type and not each.declaration.shadow]
    rules = (rule for limiter in limiters for _, rule in limiter.rules if not rule.holds_slots)
    return {rule.count for rule in rules if name_of(rule) == name_of(wanted)}


# The answer


def what_if(
    traffic: Traffic,
    found: Suggestion,
    window: int = 0,
    *,
    source: str,
    wanted_count: int | None = None,
    in_force: Iterable[int] = (),
    refuse_at_most: str,
    left_out: Sequence[LeftOut] = (),
) -> WhatIf:
    """What ``traffic`` says about one window, by its number, with what was ``found`` in it."""
    alone, gap = traffic.parts[window], found.gaps[window]
    (few_requests,) = found.for_requests[window].rules
    (few_clients,) = found.for_subjects[window].rules
    proposed = few_requests.count if gap is None else gap.at_most
    why = defaultdict[int, list[str]](list)
    if wanted_count is not None:
        why[wanted_count].append(WANTED)
    for count in in_force:
        why[count].append(IN_FORCE)
    why[few_requests.count].append(FEW_REQUESTS)
    why[few_clients.count].append(FEW_CLIENTS)
    if gap is not None:
        why[gap.at_most].append(BELOW_GAP)
    chosen = proposed if wanted_count is None else wanted_count
    peaks = sorted(((name, peak) for name, (peak,) in alone.subjects.items()), key=lambda each: (-each[1], each[0]))
    return WhatIf(
        source=source,
        requests=found.requests,
        clients=found.subjects,
        first=found.first / MICROSECONDS,
        last=found.last / MICROSECONDS,
        peaks=found.peaks[window],
        counts=curve(alone, why),
        distribution=[list(each) for each in sorted(Counter(peak for _, peak in peaks).items())],
        busiest=[
            Client(name if len(name) <= LONGEST_SUBJECT else short(name), peak, len(alone.arrivals[name]))
            for name, peak in peaks[:MOST_NAMED]
        ],
        declaration=declaration(found, [changed(few_requests, count=chosen)]),
        chosen=chosen,
        refuse_at_most=refuse_at_most,
        left_out=list(left_out),
    )


# The page


def what_if_page() -> Response:
    answer, problem, status = None, "", 200
    form = WhatIfForm.of(request.values)
    try:
        answer = _of_uploaded(form) if request.method == "POST" else of_recorded(form)
    except ConfigurationError as error:
        was_only_opened = {*request.values} <= {"lang"}
        problem, status = message_of(error), 200 if was_only_opened else 400
    except (Forbidden, TooManyRequests) as error:
        if request.method == "POST":
            raise
        problem, status = str(error.description), error.code  # the form is there all the same
    return render(
        "whatif.html",
        status=status,
        answer=answer,
        endpoints=[
            each.name for each in places_of(gate_in_force()) if not each.name.startswith(f"{request.blueprint}.")
        ],
        form=form,
        most_bytes=MOST_UPLOADED,
        most_clients=MOST_CLIENTS,
        most_requests=MOST_REQUESTS,
        problem=problem,
        recorded=bool(recordings_of(gate_in_force().app)),
        too_large=TOO_LARGE,
        types=TYPES,
        uploaded=request.method == "POST",
    )


def _of_uploaded(form: WhatIfForm) -> WhatIf:
    require_own_form()
    require_few_uploads()
    log = request.files.get("log")
    if log is None or not log.filename:
        raise ConfigurationError(Phrase("choose a log to upload"))
    return of_upload(form, log)


def query_what_if() -> WhatIf | None:
    try:
        return of_recorded(WhatIfForm.of(request.args))
    except ConfigurationError as error:
        raise BadRequest(str(error)) from error


def file_of(answers: Sequence[WhatIf]) -> str:
    """The page as one HTML file, with a part for each window.

    Its policy lets the browser use only its own style and script, by their hashes. So text from a log could do nothing,
    even if it became an element.
    """
    style, script = (STATIC["file.css"] + STATIC["slider.css"]).decode(), STATIC["slider.js"].decode()
    page = TEMPLATES.get_template("whatif_file.html").render(
        title="How many requests clients make",
        answers=answers,
        policy=f"default-src 'none'; style-src {hash_source(style)}; script-src {hash_source(script)}",
        script=Markup(script),
        style=Markup(style),
        t=lambda text, **values: text.format(**values) if values else text,
        say=str,
        window_text=str,
    )
    return visible_page(page)
