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
from .logged import LoggedRequest

REMEMBERED = 50_000
"""The number of paths whose endpoint is kept."""
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
    """

    def __init__(self, app: Flask, script_name: str = "") -> None:
        check_text("script_name", script_name)
        self._app = app
        self._script_name = script_name.rstrip("/")
        self._destinations: dict[tuple[str, str, str], Destination] = {}
        self._adapters: dict[str, MapAdapter | None] = {}
        self._same: dict[Destination, Destination] = {}

    def destination_of(self, request: LoggedRequest) -> Destination:
        if request.recorded is not None:
            endpoint = request.recorded.endpoint
            return self._one(Destination("endpoint" if endpoint else "unmatched", endpoint or "", request.method))
        path = request.target.partition("?")[0]
        known = (request.host, request.method, path)
        destination = self._destinations.get(known)
        if destination is None:
            if len(self._destinations) >= REMEMBERED:
                self._destinations.clear()
            destination = self._destinations[known] = self._one(self._found(request.host, request.method, path))
        return destination

    def _one(self, destination: Destination) -> Destination:
        """The same object for equal destinations, so they can be compared by identity."""
        return self._same.setdefault(destination, destination)

    def _found(self, host: str, method: str, target: str) -> Destination:
        if "://" in target:
            parts = urlsplit(target)
            host, target = parts.netloc or host, parts.path or "/"
        path, adapter = self._path_info(target), self._adapter(host)
        if adapter is None or path is None:
            return Destination("outside", "", method)
        try:
            endpoint, _ = adapter.match(path, method)
        except (NotFound, MethodNotAllowed):
            return Destination("unmatched", "", method)
        except HTTPException:  # a redirect of the router
            return Destination("outside", "", method)
        return Destination("endpoint", str(endpoint), method)

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
