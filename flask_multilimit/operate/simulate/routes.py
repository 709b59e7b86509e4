"""Finds the endpoint of a logged request in the app's own URL map, as Flask does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

from flask import Flask
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import MapAdapter
from werkzeug.test import EnvironBuilder

from ...engine.errors import check_text
from .logs.logged import LoggedRequest

REMEMBERED = 50_000
"""The number of paths whose endpoint is kept."""
HOSTS_REMEMBERED = 1000

Kind = Literal["endpoint", "unmatched", "outside"]
"""``outside``: the app checks no limit, whatever is declared."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request goes."""

    kind: Kind
    endpoint: str
    method: str

    @property
    def name(self) -> str:
        """For people."""
        return self.endpoint or self.kind


class Routes:
    """Finds the places of requests.

    :param script_name: the path at which the app is mounted. Requests to other paths are not for this app.
    """

    def __init__(self, app: Flask, script_name: str = "") -> None:
        check_text("script_name", script_name)
        self._app = app
        self._script_name = script_name.rstrip("/")
        self._places: dict[tuple[str, str, str], Place] = {}
        self._adapters: dict[str, MapAdapter | None] = {}
        self._same: dict[Place, Place] = {}

    def place_of(self, request: LoggedRequest) -> Place:
        if request.recorded is not None:
            endpoint = request.recorded.endpoint
            return self._one(Place("endpoint" if endpoint else "unmatched", endpoint or "", request.method))
        path = request.target.partition("?")[0]
        known = (request.host, request.method, path)
        place = self._places.get(known)
        if place is None:
            if len(self._places) >= REMEMBERED:
                self._places.clear()
            place = self._places[known] = self._one(self._found(request.host, request.method, path))
        return place

    def _one(self, place: Place) -> Place:
        """The same object for equal places, so they can be compared by identity."""
        return self._same.setdefault(place, place)

    def _found(self, host: str, method: str, target: str) -> Place:
        if "://" in target:
            parts = urlsplit(target)
            host, target = parts.netloc or host, parts.path or "/"
        path, adapter = self._path_info(target), self._adapter(host)
        if adapter is None or path is None:
            return Place("outside", "", method)
        try:
            endpoint, _ = adapter.match(path, method)
        except (NotFound, MethodNotAllowed):
            return Place("unmatched", "", method)
        except HTTPException:  # a redirect of the router
            return Place("outside", "", method)
        return Place("endpoint", str(endpoint), method)

    def _path_info(self, target: str) -> str | None:
        """The path within the app; ``None`` if it lies outside."""
        path = unquote(target, errors="replace") if "%" in target else target
        root = self._script_name
        if not path.startswith("/") or (root and path != root and not path.startswith(f"{root}/")):
            return None
        return path[len(root) :] or "/"

    def _adapter(self, host: str) -> MapAdapter | None:
        """``None`` for a host that the app does not trust: it answers 400 before anything else."""
        if host not in self._adapters:
            if len(self._adapters) >= HOSTS_REMEMBERED:
                self._adapters.clear()
            self._adapters[host] = self._made_for(host)
        return self._adapters[host]

    def _made_for(self, host: str) -> MapAdapter | None:
        environ = EnvironBuilder(
            path="/", base_url=f"http://{self._app.config['SERVER_NAME'] or 'localhost'}{self._script_name}/"
        ).get_environ()
        if host:
            environ["HTTP_HOST"] = host
        try:
            return self._app.create_url_adapter(self._app.request_class(environ))
        except HTTPException:
            return None
