"""Where one client stood at an instant of the last hour, as far as traffic still shows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import Literal

from ..control.control import seconds_of
from ..declare.subjects import EVERYONE
from ..engine import ConfigurationError
from ..engine.errors import brief
from ..engine.text import Phrase
from ..observe.traffic import Refused
from ..observe.traffic.counts import BUCKET_SECONDS
from ..observe.traffic.reading import LONGEST_SECONDS
from ..serve.gate import AppGate
from .bans import BegunBan, bans_begun
from .clients import Client
from .standing import wanted_in_traffic
from .text import local_time, shown_subject
from .traffic import TrafficMemory
from .values import Described, Verdict

LONGEST_TEXT = 40
State = Literal["banned", "refused", "passes", "unknown"]


@dataclass(frozen=True, slots=True)
class PastRefusals(Described):
    """Refusals without a pause of over a minute."""

    endpoint: str
    rule: str
    type: str
    shown: str
    """The subject for people."""
    refused: int
    since: float
    """To the second where it is known, otherwise to ten."""
    until: float
    """To ten seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past(Described):
    """Where a client stood."""

    who: str
    """As commands take it."""
    shown: str
    at: float
    state: State
    verdict: Verdict
    bans: tuple[BegunBan, ...]
    """Those in force then."""
    refusals: tuple[PastRefusals, ...]
    """Those in progress then, last those by limits that everyone shares."""


def instant_of(text: str, time: float) -> float:
    """An instant that somebody writes when it is ``time``: ``5m`` ago; or in ISO 8601, which is local time without a
    zone, and the latest such time without a date. Raises :class:`ConfigurationError`."""
    now, text = datetime.fromtimestamp(time).astimezone(), text.strip()
    if len(text) <= LONGEST_TEXT and not text.isdecimal():  # a number needs a unit
        try:
            return (now - timedelta(seconds=seconds_of(text))).timestamp()
        except (ConfigurationError, OverflowError):
            pass
        dated = text if text[2:3] != ":" else f"{now:%Y-%m-%d}T{text}"
        try:
            at = datetime.fromisoformat(dated.replace("Z", "+00:00"))
            if dated != text and at.timestamp() > (now + timedelta(minutes=1)).timestamp():
                at -= timedelta(days=1)  # the time was before midnight, and now it is after
            return at.timestamp()
        except (ValueError, OverflowError):
            pass
    remedy = "{given} is not a time: write 5m (ago), 03:12, or 2026-07-01T03:12:00+02:00"
    raise ConfigurationError(Phrase(remedy, given=brief(text)))


def standing_at(
    gate: AppGate, client: Client, memory: TrafficMemory | None, at: float, *, endpoint: str | None = None
) -> Past:
    """Where ``client`` stood ``at`` a POSIX time. Raises :class:`ConfigurationError` if this is not known any more."""
    if memory is None:
        raise ConfigurationError(
            Phrase("traffic is not counted, or not read yet, so it is not known where a client stood")
        )
    if not memory.at - LONGEST_SECONDS <= at <= memory.at + BUCKET_SECONDS:
        since = local_time(memory.at - LONGEST_SECONDS)
        known = "{at}: traffic is known from {since} until {now}"
        raise ConfigurationError(Phrase(known, at=local_time(at), since=since, now=local_time(memory.at)))
    plain = gate.settings.traffic_subjects == "plain"
    is_own = wanted_in_traffic(gate.plans, client, endpoint)

    def is_shared(who: Refused) -> bool:
        return bool(client.given) and who.type == EVERYONE.type and endpoint in {None, who.endpoint}

    found = [each for wanted in (is_own, is_shared) for each in memory.refusals.series_at(at, wanted)] if plain else []
    refusals = tuple(
        PastRefusals(who.endpoint, who.rule, who.type, shown_subject(gate.plans, who.type, who.subject), *series)
        for who, series in found
    )
    bans = (each for each in bans_begun(memory, client) if endpoint in {None, each.endpoint})
    held = tuple(each for each in bans if each.began <= at < each.ended)
    first = (memory.first or memory.at) if plain else inf
    state, verdict = _verdict(at, held, refusals, first)
    return Past(who=client.text, shown=client.shown, at=at, state=state, verdict=verdict, bans=held, refusals=refusals)


BANNED = "at {at} it was refused at {where}: banned by {rule} from {began} until {ended}{refusals}"
REFUSED = "at {at} it was refused at {where} by {rule}{refusals}"
DURING = "; refusals from {first} until {last}: {n}"
PASSED = "at {at} nothing refused it"
UNKNOWN = (
    "at {at} it was not banned; whether limits refused it is not known, because MULTILIMIT_TRAFFIC_SUBJECTS hides "
    "subjects"
)
NOT_COUNTED = "at {at} it may have been refused, as no request is counted before {first}"


def _verdict(
    at: float, bans: tuple[BegunBan, ...], refusals: tuple[PastRefusals, ...], first: float
) -> tuple[State, Phrase]:
    then = local_time(at)
    during: str = ""
    if refusals:
        since, last = min(each.since for each in refusals), max(each.until for each in refusals)
        number = sum(each.refused for each in refusals)
        during = Phrase(DURING, first=local_time(since), last=local_time(last), n=number)
    if bans:
        ban = max(bans, key=lambda each: each.ended)
        began, ended = local_time(ban.began), local_time(ban.ended)
        banned = Phrase(BANNED, at=then, where=ban.endpoint, rule=ban.by, began=began, ended=ended, refusals=during)
        return "banned", banned
    if refusals:
        return "refused", Phrase(REFUSED, at=then, where=refusals[0].endpoint, rule=refusals[0].rule, refusals=during)
    if at >= first:
        return "passes", Phrase(PASSED, at=then)
    if first == inf:
        return "unknown", Phrase(UNKNOWN, at=then)
    return "unknown", Phrase(NOT_COUNTED, at=then, first=local_time(first))
