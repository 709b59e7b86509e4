"""Resolves a logged request as the app would: to its endpoint, its client, and the list that the client is on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal
from urllib.parse import unquote

from flask import Flask
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import MapAdapter
from werkzeug.test import EnvironBuilder

from ...declare.subjects import ANONYMOUS, EVERYONE, LimitType, Resolve
from ...declare.written import is_header
from ...engine import ConfigurationError
from ...engine.errors import brief, check_mapping, check_text
from ...plan.plans import Plans
from ...serve.access import AccessLists, Action
from .logged import METHODS, LoggedRequest

# Endpoints

REMEMBERED = 50_000
"""The number of paths whose endpoint is kept, if they are short: long ones are hostile, and rarely come twice."""
LONGEST_REMEMBERED = 500
HOSTS_REMEMBERED = 1000

Reach = Literal["endpoint", "unmatched", "outside"]
"""How far a request gets: ``unmatched`` reaches the app, but no endpoint. For one that is ``outside``, the app checks
no limit, whatever is declared."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a request goes."""

    reach: Reach
    endpoint: str
    method: str

    @property
    def name(self) -> str:
        """For people."""
        return self.endpoint or self.reach


class Routes:
    """Finds the destinations of requests.

    :param script_name: the path at which the app is mounted. Requests to other paths are not for this app.
    :param methods: those that are told apart where no endpoint is reached. A client can invent any number of others.
    """

    def __init__(self, app: Flask, script_name: str = "", methods: Collection[str] = METHODS) -> None:
        check_text("script_name", script_name)
        if script_name and not script_name.startswith("/"):
            raise ConfigurationError(f"script_name={brief(script_name)}: give a path such as /shop")
        self._app = app
        self._script_name = script_name.rstrip("/")
        self._methods = methods
        self._interned = lru_cache(maxsize=None)(Destination)
        self._matched = lru_cache(REMEMBERED)(self._match)
        self._adapter = lru_cache(HOSTS_REMEMBERED)(self._make_adapter)

    def destination_of(self, request: LoggedRequest) -> Destination:
        """Where ``request`` goes. Equal destinations are the same object, so they can be compared by identity."""
        if request.recorded is not None:
            endpoint = request.recorded.endpoint
            return self._destination("endpoint" if endpoint else "unmatched", request.method, endpoint or "")
        path = request.target.partition("?")[0]
        match = self._matched if len(path) + len(request.host) <= LONGEST_REMEMBERED else self._match
        return match(request.host, request.method, path)

    def _match(self, host: str, method: str, target: str) -> Destination:
        scheme, _, rest = target.partition("://")
        if rest and "/" not in scheme:
            named, _, below = rest.partition("/")
            host, target = named or host, f"/{below}"
        path, adapter = self._path_info(target), self._adapter(host)
        if adapter is None or path is None:
            return self._destination("outside", method)
        try:
            endpoint, _ = adapter.match(path, method)
        except (NotFound, MethodNotAllowed):
            return self._destination("unmatched", method)
        except HTTPException:  # a redirect of the router
            return self._destination("outside", method)
        return self._destination("endpoint", method, str(endpoint))

    def _destination(self, reach: Reach, method: str, endpoint: str = "") -> Destination:
        return self._interned(reach, endpoint, method if endpoint or method in self._methods else "")

    def _path_info(self, target: str) -> str | None:
        """The path within the app; ``None`` if it lies outside."""
        path = unquote(target.partition("#")[0], errors="replace")
        root = self._script_name
        if not path.startswith("/") or (path != root and not path.startswith(f"{root}/")):
            return None
        return path[len(root) :] or "/"

    def _make_adapter(self, host: str) -> MapAdapter | None:
        """The routes for a host; ``None`` for one that the app does not trust: it answers 400 before anything else. If
        the log does not say the host, it is one that the app trusts."""
        trusted = self._app.config.get("TRUSTED_HOSTS") or ["localhost"]
        environ = EnvironBuilder(path="/").get_environ()
        environ["HTTP_HOST"] = host or self._app.config["SERVER_NAME"] or trusted[0].removeprefix(".")
        try:
            return self._app.create_url_adapter(self._app.request_class(environ))
        except HTTPException:
            return None


# Clients

UNAUTHORIZED = 401
IP, USER = LimitType.IP.value, LimitType.USER.value


class SubjectFinder:
    """Finds subjects.

    :param fields: the field of the log that has the subject, by the type's name: ``{"api_key": "X-Api-Key"}``. It can
        also name other fields for ``ip`` and ``user``. If the field of ``ip`` is a list, as ``X-Forwarded-For`` is,
        the last address counts.
    """

    def __init__(self, fields: Mapping[str, str], headers: Collection[str] = ()) -> None:
        check_fields(fields)
        self.fields: dict[str, str] = dict(fields)
        self.headers: frozenset[str] = frozenset({*headers, *filter(is_header, fields)})
        """Types whose subject is a header field. Without the field, the subject is the empty text."""

    def subjects_of(self, request: LoggedRequest) -> dict[str, str]:
        """The subjects of ``request``, by type."""
        if request.recorded is not None:
            return {EVERYONE.type: EVERYONE.value, **request.recorded.subjects}
        subjects = {EVERYONE.type: EVERYONE.value, IP: request.address}
        user = user_of(request)
        if user is not None:
            subjects[USER] = user
        for type_, field in self.fields.items():
            value = request.fields.get(field, "" if type_ in self.headers else None)
            if value is not None:
                subjects[type_] = value.rpartition(",")[2].strip() if type_ == IP else value
        if USER not in subjects:
            subjects[ANONYMOUS] = subjects[IP]
        return subjects

    def finds(self, type_: str) -> bool:
        """Whether the log can contain subjects of this type."""
        return type_ in {EVERYONE.type, IP, USER, *self.fields}


def check_fields(subjects: object) -> None:
    """Raise :class:`ConfigurationError` unless ``subjects`` are fields of a log by type."""
    check_mapping("subjects", subjects, 'a dict by type, such as {"api_key": "X-Api-Key"}')


def client_of(subjects: Mapping[str, str], resolve: Resolve) -> str:
    """The name of the client to show: the user, or if nobody is logged in, the address as limits count it, where many
    IPv6 addresses of one network are one client."""
    if USER in subjects:
        return f"user {subjects[USER]}"
    address = resolve(LimitType.IP, None)
    return (address and address.value) or subjects.get(ANONYMOUS) or "unknown"


def user_of(request: LoggedRequest) -> str | None:
    """The user who is logged in. With 401, servers log a name that anybody may have given."""
    return None if request.status == UNAUTHORIZED else request.user


class ClientLists:
    """The lists of the settings and of the control document, as they are now and not as they were at a request; for
    one that was recorded, as they were."""

    def __init__(self, access: AccessLists | None, plans: Plans, finder: SubjectFinder) -> None:
        self._access = access
        self._plans = plans
        self._missing = tuple(
            f"entries of lists for {name!r}: the log does not say it; name a field (--subject {name}=FIELD)"
            for name in sorted(() if access is None else access.type_names)
            if not finder.finds(name)
        )

    def of(self, request: LoggedRequest, subjects: Mapping[str, str]) -> Action | None:
        """The list that the client of ``request`` is on; ``None`` if it is on none, so limits apply."""
        if request.recorded is not None:
            return request.recorded.listed
        if self._access is None:
            return None
        subjects_of = partial(self._plans.subjects_called, resolve=self._plans.subjects.given(subjects))
        listed = self._access.of_client(subjects[IP], subjects_of)
        return None if listed is None else listed.action

    def missing(self, request: LoggedRequest) -> tuple[str, ...]:
        """What the log does not say about this client."""
        if self._access is not None and request.recorded is not None:
            return ("allow and deny lists: as they were when it was recorded, because its subjects are hashed",)
        return self._missing
