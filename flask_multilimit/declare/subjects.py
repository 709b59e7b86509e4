"""Who shares a quota: the type of a limiter, resolved to a subject for this request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from enum import Enum
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv6Address
from types import NoneType
from typing import Any, NamedTuple, TypeVar, cast
from uuid import UUID

from flask import Flask, Request, has_request_context, request
from werkzeug.exceptions import BadRequest
from werkzeug.http import parse_list_header

from ..engine import ConfigurationError, keys
from ..engine.errors import brief
from ..engine.keys import type_and_value
from ..engine.text import LONGEST_ADDRESS, plain_text
from .addresses import LIKE_ADDRESS, client_in, network_of, number_of, usual_network
from .unwrap import name_of

T = TypeVar("T")

current_request: Callable[[], Request] = request._get_current_object  # type: ignore[attr-defined]
"""The request itself: each access to an attribute of the proxy would look it up again."""


def request_if_any() -> Request | None:
    """The current request; ``None`` outside of one. Twice as fast as ``has_request_context`` and then ``request``."""
    try:
        return current_request()
    except RuntimeError:
        return None


def address_of(request: Request) -> str:
    """The address of the client. Raises :exc:`BadRequest` if ProxyFix cannot know it: an open quotation mark swallows
    the entries that proxies append, and the client would have an address of its choice, or that of a proxy."""
    forwarded = request.environ.get("HTTP_X_FORWARDED_FOR", "")
    has_proxies = '"' in forwarded and "werkzeug.proxy_fix.orig" in request.environ
    if has_proxies and parse_list_header(f"{forwarded},-")[-1:] != ["-"]:
        raise BadRequest("X-Forwarded-For has an open quotation mark.")
    return request.remote_addr or ""


class LimitType(str, Enum):
    """Who shares the quota of a limiter."""

    DEFAULT = "default"
    """Everyone: one quota for all."""
    GLOBAL = "default"
    """Another name for ``DEFAULT``."""
    IP = "ip"
    """Requests of one client address: ``request.remote_addr``, never a header that a client can forge. IPv6 addresses
    of one network (/64 unless ``MULTILIMIT_IPV6_PREFIX`` says otherwise) count as one, IPv4-mapped ones as IPv4."""
    USER = "user"
    """Requests of one user: what ``user_loader`` returns, or flask-login's current user (of Flask-Security: the id)."""


DEFAULT, GLOBAL, IP, USER = LimitType.DEFAULT, LimitType.GLOBAL, LimitType.IP, LimitType.USER
"""The same, for short. They also save a request the look-up in the class, which takes longer than to compare."""


class FromText:
    """A callable that text stands for, such as ``header:X-Tenant``: it calls no function of the app. It equals another
    one of its class and name, because that does the same."""

    __call__: Callable[..., Any]

    def __init__(self, name: str) -> None:
        self.__qualname__ = name

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__qualname__ == getattr(other, "__qualname__", None)

    def __hash__(self) -> int:
        return hash(self.__qualname__)


UserLoader = Callable[[], Any]
"""Returns the id of the current request's user; ``None`` if nobody is logged in."""

SingleType = LimitType | Callable[[], str | int | UUID | None]
SubjectType = SingleType | tuple[SingleType, ...]
"""A :class:`LimitType`; a callable of your own, which returns ``None`` if the limiter does not apply; or a tuple of
these, which together are one subject."""

ANONYMOUS = "anonymous"


class Subject(NamedTuple):
    """Who is counted: the resolved value of a type. ``str(subject)`` names it, and :meth:`parse` reads the name:
    ``user:42``, ``ip:203.0.113.7``, ``api_key:key-0``; ``everyone`` is the one subject of the type ``default``."""

    type: str
    """Its name in keys: see :func:`type_name_of`."""
    value: str

    @classmethod
    def parse(cls, text: object) -> Subject:
        """A subject from ``text``, or as it is if it is one. Raises :class:`ConfigurationError` for anything else."""
        if isinstance(text, cls):
            return text
        return cls(*type_and_value(text))

    def __str__(self) -> str:
        return keys.EVERYONE if self == EVERYONE else f"{self.type}:{self.value}"


EVERYONE = Subject(LimitType.DEFAULT.value, "")


Named = str | Subject | Iterable[str | Subject]
"""One subject, or several that a request has together, as :meth:`Subject.parse` reads them."""


def subjects_from(given: object) -> dict[str, str]:
    """The values of the ``given`` subjects (:data:`Named`) by type. Raises :class:`ConfigurationError` if there are
    none, or two of one type."""
    several = given if isinstance(given, Iterable) and not isinstance(given, (str, bytes, Subject)) else [given]
    if isinstance(several, AbstractSet):
        several = sorted(several, key=str)  # its order differs between processes
    found: dict[str, str] = {}
    for subject in map(Subject.parse, several):
        if found.setdefault(subject.type, subject.value) != subject.value:
            raise ConfigurationError(f"subjects {brief(given)}: name one {subject.type} at a time")
    if not found:
        raise ConfigurationError(f"subject {brief(given)}: {keys.NAMES}")
    return found


def type_of_given(subjects: Mapping[str, str], name: str | None) -> tuple[SubjectType, str | None]:
    """The type whose subject has these values, by the names of its parts, and the name of its limiter, of which
    ``name`` is what is given. A type of one's own is there in name only. Raises :class:`ConfigurationError`."""
    own = {part: value for part, value in subjects.items() if part not in _LIMIT_TYPES}
    for part, value in own.items():
        is_name = len(own) > 1 or re.fullmatch(keys.NAME_PATTERN, part)  # of several, each is a function
        if not is_name or (part == "header" and ":" in value):  # header:X-Api-Key is a type, not a name
            named = brief(f"{part}:{value}")
            raise ConfigurationError(
                f'subject {named}: its type is none of "ip", "user", "anonymous", and no name of a limiter, such as '
                '"api_key:key-0", or "x-api-key:key-0" for header:X-Api-Key; give several in a list'
            )
    if len(own) == 1:
        (own_name,) = own
        if name not in (None, own_name):
            raise ConfigurationError(
                f'name={brief(name)}: a limiter by a type of its own has the name of this type: give "{name}:..."'
            )
        name = own_name
    parts = tuple(_LIMIT_TYPES.get(part) or _stand_in(part) for part in subjects)
    return parts if len(parts) > 1 else parts[0], name


_LIMIT_TYPES: Mapping[str, LimitType] = {**{each.value: each for each in LimitType}, ANONYMOUS: LimitType.USER}


def _stand_in(name: str) -> Callable[[], str]:
    def given() -> str:
        raise NotImplementedError

    given.__name__ = given.__qualname__ = name
    return given


def spelled(parts: Sequence[str]) -> str:
    """How to name a subject of these parts in code."""
    named = [f'"{EVERYONE}"' if part == EVERYONE.type else f'"{part}:..."' for part in parts]
    return named[0] if len(named) == 1 else f"[{', '.join(named)}]"


Resolve = Callable[[SubjectType, str | None], Subject | None]
"""The subject of a type; the second argument is the name of the limiter. ``None``: the limiter does not apply."""


def types_in(type_: SubjectType) -> tuple[SingleType, ...]:
    """The parts of a type, or the type itself if it has none."""
    return type_ if isinstance(type_, tuple) else (type_,)


def type_name_of(type_: SubjectType, name: str | None) -> str:
    """The name of the type in keys and in names of rules."""
    parts = types_in(type_)
    names = [part.value for part in parts if isinstance(part, LimitType)]
    return "+".join(names) if len(names) == len(parts) else str(name)


def parts_of(type_: SubjectType, name: str | None) -> tuple[str, ...]:
    """The names by which the subjects of a type are given: its own name, or for a tuple one name per part.

    A single callable in a tuple has the limiter's name; several have their own names, with a number if these are equal.
    """
    if not isinstance(type_, tuple):
        return (type_name_of(type_, name),)
    one_callable = sum(not isinstance(part, LimitType) for part in type_) == 1
    taken: dict[str, SingleType] = {}
    return tuple(_name_of_part(part, str(name), taken, one_callable=one_callable) for part in type_)


def _name_of_part(part: SingleType, name: str, taken: dict[str, SingleType], *, one_callable: bool) -> str:
    own = name if one_callable else str(getattr(part, "__name__", name))
    wanted = part.value if isinstance(part, LimitType) else own
    unique = numbered(wanted, [known for known, other in taken.items() if other != part])
    taken[unique] = part
    return unique


def numbered(wanted: str, taken: Container[str]) -> str:
    """``wanted``, followed by a number if it is ``taken``: ``ip-60s-2``."""
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}-{number}", number + 1
    return name


def subjects_given(
    *,
    ip: str | IPv4Address | IPv6Address | None = None,
    user: str | int | UUID | None = None,
    everyone: bool = False,
    subjects: Mapping[str, str],
) -> dict[str, str]:
    """The subjects in the arguments of a function, by type. Raises :class:`ConfigurationError` for what is no id."""
    address = str(ip) if isinstance(ip, (IPv4Address, IPv6Address)) else ip
    if not isinstance(address, (str, NoneType)):
        raise ConfigurationError(f'ip={brief(address)}: give the address as text, such as "203.0.113.7"')
    named = [*subjects.items(), (LimitType.IP.value, address), (LimitType.USER.value, user)]
    given = {name: _given_id(name, value) for name, value in named if value is not None}
    if len(given) < sum(value is not None for _, value in named):
        raise ConfigurationError(f"{' and '.join(subjects)}: give each type once, as a subject or by itself")
    if everyone:
        given[EVERYONE.type] = EVERYONE.value
    return given


def forms_of(given: Mapping[str, str]) -> dict[str, str]:
    """The subjects that an app has ``given`` by the ids that it knows, in their own forms (:func:`.own_form`). Text
    that looks like several parts stays: it may be a subject that has these."""
    like = ("*", keys.TEXT)
    return {name: keys.own_form(name, value) if value.startswith(like) else value for name, value in given.items()}


def _given_id(name: str, value: object) -> str:
    found = _id_from(value)
    if found is None:
        raise ConfigurationError(f"{name}={brief(value)}: give a str, an int or a UUID")
    return found


class Subjects:
    """Resolves types to subjects for the current request of one app."""

    def __init__(
        self, app: Flask, *, ipv6_prefix: int, anonymous_user: str, find_user_loader: Callable[[], UserLoader | None]
    ) -> None:
        self._app = app
        self._ipv6_prefix = ipv6_prefix
        self._anonymous_user = anonymous_user
        self.find_user_loader = find_user_loader

    def resolve(self, type_: SubjectType, name: str | None) -> Subject | None:
        """The subject of ``type_`` for the current request."""
        if type_ is DEFAULT:
            return EVERYONE
        if type_ is IP:
            return self._client()
        if type_ is USER:
            return self._user()
        if isinstance(type_, tuple):
            return _combined(type_, name, [self.resolve(part, name) for part in type_])
        value = _id_of(cast("Callable[[], object]", type_), f"the type {name!r}")
        return None if value is None else _own(str(name), value)

    def resolve_if_found(self, type_: SubjectType, name: str | None) -> Subject | None:
        """As :meth:`resolve`, for a request that may have ended before everything about it is known. If the
        ``user_loader`` raises, the client counts as not logged in; if a callable type raises, there is no subject."""
        if isinstance(type_, tuple):
            return _combined(type_, name, [self.resolve_if_found(part, name) for part in type_])
        try:
            return self.resolve(type_, name)
        except Exception:
            if isinstance(type_, LimitType) and type_ is not USER:
                raise
            return self._anonymous_client() if type_ is USER else None

    def without_app(self, type_: SubjectType, name: str | None) -> Subject | None:
        """As :meth:`resolve`, without a call of any function of the app: the client counts as not logged in."""
        if isinstance(type_, tuple):
            return _combined(type_, name, [self.without_app(part, name) for part in type_])
        if type_ is USER:
            return self._anonymous_client()
        return self.resolve(type_, name) if isinstance(type_, (LimitType, FromText)) else None

    def given(self, subjects: Mapping[str, str]) -> Resolve:
        """A resolver that knows ``subjects``, by type, and no request; limiters of other types do not apply.

        The subject of a tuple is known if each part is given, by the names of :func:`parts_of`, or if the whole subject
        is given, as the storage has it; if that is called as a part is, by itself: a client may choose a part that
        looks like it. ``anonymous`` is the address of a client that is not logged in.
        """
        return partial(self._given, subjects)

    def _given(self, subjects: Mapping[str, str], type_: SubjectType, name: str | None) -> Subject | None:
        if isinstance(type_, tuple):
            names, whole_name = parts_of(type_, name), type_name_of(type_, name)
            if "+" in whole_name or subjects.keys() <= {whole_name, EVERYONE.type}:
                whole = parts_in(subjects.get(whole_name, ""))
                if len(whole) == len(type_):
                    return _combined(type_, name, whole)
            named = zip(type_, names, strict=True)
            return _combined(type_, name, [self._given_part(subjects, part, called, name) for part, called in named])
        if type_ is LimitType.USER and ANONYMOUS in subjects and LimitType.USER.value not in subjects:
            return self._anonymous_at(network_of(subjects[ANONYMOUS], self._ipv6_prefix))
        return self._subject_in(type_name_of(type_, name), subjects)

    def _given_part(
        self, subjects: Mapping[str, str], type_: SingleType, called: str, name: str | None
    ) -> Subject | None:
        if type_ is LimitType.DEFAULT:
            return EVERYONE
        if isinstance(type_, LimitType):
            return self._given(subjects, type_, name)
        return self._subject_in(called, subjects, as_=str(name))

    def _subject_in(self, called: str, subjects: Mapping[str, str], *, as_: str | None = None) -> Subject | None:
        value = subjects.get(called)
        return None if value is None else self.counted(Subject(as_ or called, value))

    def counted(self, subject: Subject) -> Subject:
        """``subject`` as limits count it: an address by its network."""
        if subject.type == LimitType.IP.value:
            return Subject(subject.type, network_of(subject.value, self._ipv6_prefix))
        return subject if known_id(subject) != subject.value else _own(*subject)

    def clients_from(self, given: object) -> dict[str, str]:
        """As :func:`subjects_from`, in their own forms (:func:`forms_of`); none if the app gives nothing. Raises as
        :meth:`require_clients`, too."""
        found = {} if given is None else subjects_from(given)
        self.require_clients(found)
        return forms_of(found)

    def require_clients(self, given: Mapping[str, str]) -> None:
        """Raise :class:`ConfigurationError` for a misspelled address among the ``given`` subjects, and for a network
        that is more than one client."""
        for name in (LimitType.IP.value, ANONYMOUS):
            value = given.get(name, "")
            network = usual_network(value) if "/" in value else None
            if network is None and LIKE_ADDRESS.fullmatch(value) and number_of(value) is None:
                raise ConfigurationError(f'{brief(f"{name}:{value}")}: write it as "203.0.113.7" or "2001:db8::7"')
            if network is not None and client_in(network, self._ipv6_prefix) is None:
                raise ConfigurationError(
                    f"{name}:{value}: limits count each of its addresses, and IPv6 addresses of one "
                    f"/{self._ipv6_prefix} count as one client; give one of them"
                )

    @property
    def knows_users(self) -> bool:
        """Whether the app can tell who the user is."""
        return self.find_user_loader() is not None or "login_manager" in vars(self._app)  # an app of Eve has any

    def require_users(self, place: str) -> None:
        """Raise :class:`ConfigurationError` unless the app can tell who the user is."""
        if not self.knows_users:
            raise ConfigurationError(
                f"{place}: type=LimitType.USER needs to know the user; pass user_loader= to MultiLimit, "
                "decorate a function with @multilimit.user_loader, or set up flask-login"
            )

    def _client(self) -> Subject:
        try:
            address = address_of(current_request())
        except RuntimeError:
            raise RuntimeError(
                "a limit counts by the address of the client, and outside of a request there is none: name a subject, "
                'such as "ip:203.0.113.7", or limit what runs there by another type, such as LimitType.DEFAULT'
            ) from None
        return _client_at(address, self._ipv6_prefix) if len(address) <= LONGEST_ADDRESS else Subject("ip", address)

    def _user(self) -> Subject:
        loader = self.find_user_loader()
        user = _id_of(_flask_login_user if loader is None else loader, "user_loader")
        return _own("user", user) if user else self._anonymous_client()

    def _anonymous_client(self) -> Subject:
        return self._anonymous_at(self._client().value if self._anonymous_user == "ip" else "")

    def _anonymous_at(self, address: str) -> Subject:
        """The subject of a client that is not logged in."""
        return Subject(ANONYMOUS, address if self._anonymous_user == "ip" else "")


def _own(name: str, value: str) -> Subject:
    """The subject with an id that a client may have chosen."""
    return Subject(name, keys.own_form(name, value))


def known_id(subject: Subject) -> str:
    """The id of ``subject`` as the app knows it."""
    return keys.known_form(*subject)


def spellings(subject: Subject) -> tuple[Subject, ...]:
    """``subject``, and the same by its name: entries may name either."""
    name = keys.name_of_id(*subject)
    return (subject,) if name == subject.value else (subject, Subject(subject.type, name))


def _combined(types: tuple[SingleType, ...], name: str | None, parts: Sequence[Subject | None]) -> Subject | None:
    """One subject made of ``parts``."""
    return None if None in parts else Subject(type_name_of(types, name), value_of(parts))


def value_of(parts: Sequence[Subject | None]) -> str:
    """The value of a subject of several types. JSON keeps the ``parts`` apart whatever they contain."""
    return json.dumps(parts)


def parts_in(value: str) -> tuple[Subject, ...]:
    """The parts of a subject of several types from its ``value`` in the storage; none if that is something else."""
    return tuple(Subject(*each) for each in keys.pairs_in(value))


def parts_with_names(value: str) -> tuple[Subject, ...]:
    """The parts in ``value`` that the names of their types tell apart. Several callables all have the name of their
    limiter, and a client may choose one part so that it looks like another."""
    parts = parts_in(value)
    names = [part.type for part in parts]
    return tuple(part for part in parts if names.count(part.type) == 1)


def _flask_login_user() -> Any:
    from flask_login import current_user  # noqa: PLC0415 - optional: there when app.login_manager is

    if not has_request_context():
        return None
    if not current_user.is_authenticated:
        return None
    given = current_user.get_id()
    # Flask-Security changes this token with the password, and a new password must not give a new quota. In MongoDB,
    # the id is an object.
    if not given or given != getattr(current_user, "fs_uniquifier", None):
        return given
    return None if current_user.id is None else str(current_user.id)


_RUNNING: ContextVar[tuple[Callable[..., object], ...]] = ContextVar("multilimit_running", default=())
"""The callables that a check is asking at the moment, to notice one that calls itself."""
_ANOTHER_TYPE = "limit that by another type, such as LimitType.IP"


def ask_callable(
    function: Callable[..., T], *arguments: Any, source: str = "", remedy: str = "give that limit another callable"
) -> T:
    """What ``function``, a callable of a limiter, returns. Raises :class:`ConfigurationError` if it calls itself: each
    call would end by a RecursionError, and be repeated to check the other limits, for hours."""
    running = _RUNNING.get()
    if running and function in running:
        raise ConfigurationError(
            f"{source or name_of(function)} calls itself: it calls a function, or makes a check, whose limit calls it; "
            f"{remedy}"
        )
    token = _RUNNING.set((*running, function))
    try:
        return function(*arguments)
    finally:
        _RUNNING.reset(token)


def _id_of(find: Callable[[], object], source: str) -> str | None:
    """The id that ``find`` returns, as text; ``None`` if it returns ``None``, or a proxy for that."""
    value = ask_callable(find, source=source, remedy=_ANOTHER_TYPE)
    text = _id_from(value)
    if text is None and not isinstance(value, NoneType):
        raise ConfigurationError(f"{source} returned {brief(value)}: return a str, an int, a UUID, or None")
    return text


def _id_from(value: object) -> str | None:
    """The id as text; ``None`` for another object: its text may differ at every request, so no limit would refuse."""
    if isinstance(value, str):
        return plain_text(value)
    return str(value) if isinstance(value, (int, UUID)) and not isinstance(value, bool) else None


@lru_cache(maxsize=4096)
def _client_at(address: str, ipv6_prefix: int) -> Subject:
    return Subject("ip", network_of(address, ipv6_prefix))
