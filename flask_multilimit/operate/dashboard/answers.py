"""The answers of ``/api/``: the models from which its OpenAPI document is made. A test checks every answer.

Instants are seconds since 1970, durations seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from ...control.store import Kind


class _Model:
    """The texts below the fields become descriptions in the document."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True)


From = Annotated[str, Field(alias="from")]


@dataclass
class Problem(_Model):
    """Why there is no answer."""

    error: str


@dataclass
class Paging(_Model):
    """The part of a list that is shown."""

    page: int
    pages: int
    total: int


@dataclass
class Entry(_Model):
    """A change while the app runs: a limit that differs, or a subject that is allowed, denied or banned."""

    id: str
    kind: Kind
    text: str
    """For people."""
    author: str
    reason: str
    since: float
    until: float | None
    """``null``: until somebody undoes it."""
    who: str = ""
    status: int | None = None
    """The status of a denied request; ``null``: as MULTILIMIT_DENY_STATUS says."""
    endpoint: str = ""
    rule: str = ""
    limiter: str = ""
    rules: str | list[Any] = ""
    times: float = 1
    off: bool = False
    shadow: bool = False
    limit: Any = None
    """An additional limit, as it would be declared."""
    idle: bool = False
    """Whether it matches nothing in the app."""


@dataclass
class Amount(_Model):
    """How many."""

    rate: float
    """Per second, over the last minute."""
    hour: int
    """In the last hour."""


@dataclass
class Amounts(_Model):
    """Checks."""

    passed: Amount
    refused: Amount
    other: Amount
    """Banned, denied by a list, or unanswered as the storage failed."""
    near: Amount
    """Passed, with more than 80 % of a quota used."""
    shadowed: Amount
    """Passed, but a shadow would have refused."""
    bans: Amount
    """Bans that began."""


@dataclass
class Series(_Model):
    """Checks in each slice of the last hour, the oldest first."""

    passed: list[int]
    refused: list[int]
    other: list[int]


@dataclass
class WholeSeries(Series):
    """Checks in each slice, of every kind."""

    near: list[int]
    shadowed: list[int]
    bans: list[int]
    last: int
    """The number of the last slice: when it began, divided by ``step``."""
    step: int
    """Seconds in a slice."""


@dataclass
class EndpointAmounts(Amounts):
    """Checks at one endpoint."""

    endpoint: str
    series: Series


@dataclass
class RuleAmounts(_Model):
    """Checks in the last hour."""

    endpoint: str
    rule: str
    refuses: int
    near: int
    shadows: int
    """Checks that it would have refused if it were no shadow."""
    bans: int
    """Bans that began."""


@dataclass
class Refused(_Model):
    """A subject that was refused in the last hour."""

    type: str
    subject: str
    shown: str
    """For people."""
    known: bool
    """Whether ``subject`` can show more about it."""
    endpoint: str
    rule: str
    refused: int
    since: float
    until: float


@dataclass
class StorageState(_Model):
    """The state of the storage, as far as the process that answers knows."""

    name: str
    address: str
    shared: bool
    """Whether processes share it."""
    guarded: bool
    state: Literal["working", "failed"]
    since: float | None
    error: str
    milliseconds: float | None
    """The time that its last answer took."""
    remark: str = ""
    breaker: str = ""
    fallback_keys: int = 0
    """Quotas that this process counts while the storage is away."""
    pending: int = 0
    """Checks that will be charged when the storage is back."""
    given_up: int = 0
    workers: int = 0
    workers_source: str = ""
    workers_certain: bool = True


@dataclass
class Changes(_Model):
    """The number of entries."""

    enabled: bool
    shared: bool
    problem: str
    """Why the newest changes cannot be applied."""
    override: int
    ban: int
    deny: int
    allow: int


@dataclass
class Now(_Model):
    """What happens now."""

    at: float
    counted: bool
    why_not: str
    seconds: float
    """The seconds that the numbers cover so far."""
    complete: bool
    """Whether they cover the whole hour."""
    endpoint: str | None
    q: str
    sort: str
    totals: Amounts
    series: WholeSeries
    endpoints: list[EndpointAmounts]
    rules: list[RuleAmounts]
    subjects: list[Refused]
    """The subjects that were refused most."""
    storage: StorageState
    changes: Changes
    paging: Paging


@dataclass
class Route(_Model):
    """One URL rule."""

    path: str
    methods: list[str]


@dataclass
class RuleHour(_Model):
    """Checks in the last hour."""

    refuses: int
    near: int
    shadows: int


@dataclass
class LimitRow(_Model):
    """One rule of one limiter at one endpoint."""

    name: str
    limiter: str
    type: str
    text: str
    """For people, like ``options``."""
    options: list[str]
    from_: From
    """Where it was declared."""
    by_request: bool
    """Whether its rules depend on the request."""
    changed: bool
    """Whether it differs from what was declared."""
    declared: str | None
    hour: RuleHour
    subjects: list[Entry]
    """Entries about subjects with their own rules: the first of ``subjects_in_all``."""
    subjects_in_all: int
    scope: str
    key: str | None
    methods: list[str] | None
    shadow: bool
    cost: int | str | None
    wait: float | None
    ban: Any
    charge_when: bool
    exempt_when: bool
    hash_tag: str
    algorithm: str | None = None
    count: int | None = None
    time: float | None = None
    burst: int | None = None
    max_delay: float | None = None
    lease: Any = None


@dataclass
class EndpointLimits(_Model):
    """One endpoint, and what limits it."""

    endpoint: str
    routes: list[Route]
    limits: list[LimitRow]
    changes: list[Entry]


@dataclass
class Limits(_Model):
    """Which limits apply where."""

    q: str
    show: str
    endpoints: list[EndpointLimits]
    paging: Paging
    all: int


@dataclass
class Standing(_Model):
    """One rule, and how much of its quota a subject has used."""

    name: str
    type: str
    text: str
    quota: int
    used: int
    remaining: int
    allowed: bool
    shadow: bool
    retry_after: float | None
    """``null``: not known."""
    reset_after: float


@dataclass
class BanStanding(_Model):
    """A ban that follows from refusals, and how near it is."""

    name: str
    text: str
    holds: bool
    level: int
    strikes_left: int
    retry_after: float | None
    reset_after: float
    shadow: bool


@dataclass
class EndpointStanding(_Model):
    """The quotas of a subject at one endpoint."""

    endpoint: str
    methods: list[str]
    allowed: bool
    """Whether a request would pass now."""
    retry_after: float | None
    rules: list[Standing]
    bans: list[BanStanding]


@dataclass
class Verdict(_Model):
    """What lists decide about every request of a subject."""

    action: str
    from_: From
    who: str


@dataclass
class Found(_Model):
    """A subject, or a network of them."""

    who: str
    type: str
    value: str
    shown: str
    counted: bool
    """Whether limits count it. They do not count networks."""
    verdict: Verdict | None
    entries: list[Entry]
    refusals: list[Refused]
    standings: list[EndpointStanding]
    paging: Paging
    problem: str


@dataclass
class Subject(_Model):
    """The quotas of one subject."""

    found: Found | None
    mistake: str


@dataclass
class Difference(_Model):
    """One endpoint whose limits would change."""

    endpoint: str
    methods: list[str]
    before: list[str]
    after: list[str]


@dataclass
class Known(_Model):
    """What the last hour says about a change."""

    endpoint: str
    rule: str
    text: str
    template: str
    numbers: dict[str, float]


@dataclass
class Change(_Model):
    """What a change would do. The form on the page makes it."""

    given: dict[str, str]
    mistakes: dict[str, str]
    """By field; ``""`` has what is wrong with the whole."""
    warning: str
    entry: Entry | None
    replaces: Entry | None
    differences: list[Difference]
    differing: int
    known: list[Known]


@dataclass
class Counts(_Model):
    """The number of entries of each kind."""

    override: int
    ban: int
    deny: int
    allow: int


@dataclass
class DeclaredEntry(_Model):
    """An entry of a list in the settings."""

    kind: str
    text: str
    from_: From


@dataclass
class Lists(_Model):
    """Changes while the app runs."""

    kind: str
    q: str
    entries: list[Entry]
    counts: Counts
    declared: list[DeclaredEntry]
    problem: str
    paging: Paging


@dataclass
class Done(_Model):
    """One change that was made."""

    at: float
    author: str
    what: str
    entry: str
    id: str
    reason: str
    in_force: bool


@dataclass
class History(_Model):
    """What was changed, the newest first."""

    q: str
    changes: list[Done]
    all: int
    problem: str
    paging: Paging
