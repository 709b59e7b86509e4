"""What the documents of an API say about its limits, for OpenAPI 3 and Swagger 2."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field as Described
from pydantic import TypeAdapter
from typing_extensions import NotRequired, TypedDict

from ..declare.subjects import EVERYONE, LimitType
from ..engine import ConfigurationError
from ..engine.errors import brief
from ..serve.gate import AppGate
from ..serve.headers import DIALECTS, FIELDS
from ..serve.refusal import PROBLEM
from .limits import EndpointLimits, Limit, endpoint_limits, places_of

Document = dict[str, Any]
Field = tuple[str, str, str]
"""The name of a header field, its type, and what it says."""
REFUSAL = "RateLimitExceeded"

_VARIABLE = re.compile(r"<(?:[^<>:]*:)?([^<>:]*)>")
"""A variable in the path of a route, after the name of its converter."""

_RETRY_AFTER = {
    "seconds": ("Retry-After", "integer", "Seconds after which to try again; absent if waiting does not help."),
    "date": ("Retry-After", "string", "The date after which to try again; absent if waiting does not help."),
}

_WHY = {"429": "Too many requests", "503": "The service is busy"}
"""Why a request is refused, by status."""


RateLimitViolation = TypedDict(
    "RateLimitViolation",
    {
        "policy": Annotated[str, Described(description="The name of the limit in RateLimit-Policy.")],
        "limit": NotRequired[int],
        "window": NotRequired[Annotated[float, Described(description="Seconds.")]],
        "period": NotRequired[Annotated[str, Described(description="The period of a calendar, such as month.")]],
        "unit": NotRequired[
            Annotated[str, Described(description="What it counts; absent: requests. concurrent-requests: in progress.")]
        ],
        "retry-after": NotRequired[Annotated[int, Described(description="Seconds; absent if waiting does not help.")]],
        "banned": NotRequired[bool],
    },
)
"""A limit that refuses."""

RateLimitProblem = TypedDict(
    "RateLimitProblem",
    {
        "type": str,
        "title": str,
        "status": int,
        "detail": str,
        "violated-policies": list[str],
        "violations": list[RateLimitViolation],
    },
)
"""The body of a refusal, as RFC 9457 describes it."""


@dataclass(frozen=True)
class _Version:
    """How one version of OpenAPI writes what this module adds."""

    root: tuple[str, ...]
    """Where schemas are."""
    number: Literal[2, 3]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> _Version:
        if str(document.get("swagger", "")).startswith("2"):
            return cls(("definitions",), 2)
        if str(document.get("openapi", "")).startswith("3"):
            return cls(("components", "schemas"), 3)
        given = {name: document.get(name) for name in ("openapi", "swagger")}
        raise ConfigurationError(f"openapi: document={brief(given)}: give a document of OpenAPI 3 or Swagger 2")

    def schemas(self) -> Any:
        """The schemas of a refusal, by name."""
        return _copied(_schemas("#/" + "/".join(self.root) + "/{model}"))

    def header(self, kind: str, text: str) -> Document:
        if self.number == 2:
            return {"type": kind, "description": text}
        return {"description": text, "schema": {"type": kind}}

    def headers(self, fields: Iterable[Field]) -> Document:
        """What a response says about ``fields``. Swagger 2 cannot refer to a definition of them."""
        if self.number == 2:
            return {name: self.header(kind, text) for name, kind, text in fields}
        return {name: {"$ref": f"#/components/headers/{name}"} for name, _, _ in fields}

    def refusal(self, text: str, fields: Iterable[Field]) -> Document:
        schema = {"$ref": "#/" + "/".join((*self.root, RateLimitProblem.__name__))}
        headers = self.headers(fields)
        body = {"schema": schema} if self.number == 2 else {"content": {PROBLEM: {"schema": schema}}}
        return {"description": text, "headers": headers, **body}

    def refusals(self, gate: AppGate, limits: Iterable[Limit]) -> Document:
        """The refusals by status: 503 for a reserve of what all clients share, 429 otherwise."""
        by_code: dict[str, list[Limit]] = {}
        for limit in limits:
            by_code.setdefault("503" if limit.reserve and limit.type == EVERYONE.type else "429", []).append(limit)
        fields = _fields_of_refusals(gate)
        return {code: self.refusal(f"{_WHY[code]}: {_summary(some)}", fields) for code, some in sorted(by_code.items())}

    def prefixes(self, document: Mapping[str, Any]) -> list[str]:
        """What may stand before the paths of a document."""
        if self.number == 2:
            return [str(document.get("basePath", "")).rstrip("/")]
        urls = [str(each.get("url", "")) for each in document.get("servers") or () if isinstance(each, Mapping)]
        return ["", *(urlsplit(url).path.rstrip("/") for url in urls)]


OPENAPI_3 = _Version(("components", "schemas"), 3)


def additions(gate: AppGate) -> Document:
    """``components``, and what to add to each operation in ``paths``, for OpenAPI 3."""
    paths: Document = {}
    for (path, method), endpoint in _operations(gate).items():
        if limits := _limits_at(endpoint, method):
            paths.setdefault(path, {})[method.lower()] = {"responses": OPENAPI_3.refusals(gate, limits)}
    return {**_components(gate, OPENAPI_3), "paths": paths}


def with_limits(gate: AppGate, document: Mapping[str, Any]) -> Document:
    """A copy of ``document`` that says which of its operations are limited. What it says itself about a refusal or a
    field stays. Raises :class:`ConfigurationError` for anything but a document."""
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"openapi: document={brief(document)}: give a document as a dict")
    version, known = _Version.of(document), _operations(gate)
    made: Document = _copied(document)
    _add(made, _components(gate, version), 2 if version.number == 2 else 3)
    prefixes = version.prefixes(made)
    paths = _table(made, "paths") if "paths" in made else {}
    for path in paths:
        operations = _table(paths, path)
        for method in operations:
            names = [(prefix + path, method.upper()) for prefix in prefixes]
            limits = next((_limits_at(known[name], name[1]) for name in names if name in known), [])
            if limits:
                _describe(gate, version, _table(_table(operations, method), "responses"), limits)
    return made


def _describe(gate: AppGate, version: _Version, responses: Document, limits: list[Limit]) -> None:
    fields = version.headers(_fields(gate)) if gate.settings.headers_on == "always" else {}
    for code in responses:
        if fields and str(code).startswith("2") and "$ref" not in (response := _table(responses, code)):
            _add(response, {"headers": fields}, 2)
    _add(responses, version.refusals(gate, limits), 1)


def _components(gate: AppGate, version: _Version) -> Document:
    fields = _fields_of_refusals(gate)
    responses = {REFUSAL: version.refusal("Too many requests.", fields)}
    if version.number == 2:
        return {"definitions": version.schemas(), "responses": responses}
    headers = {name: version.header(kind, text) for name, kind, text in fields}
    return {"components": {"headers": headers, "responses": responses, "schemas": version.schemas()}}


def _add(into: Document, extra: Mapping[str, Any], levels: int) -> None:
    """Add ``extra`` to ``into``, merged so many levels down. What is there already stays."""
    for name, value in extra.items():
        if levels > 1:
            _add(_table(into, name), value, levels - 1)
        elif into.get(name) is None:
            into[name] = value


def _table(document: Document, name: str) -> Document:
    """The table under ``name``, made if there is none: YAML has null for a name without content. Raises
    :class:`ConfigurationError` if there is something else."""
    if document.get(name) is None:
        document[name] = {}
    found = document[name]
    if isinstance(found, dict):
        return found
    raise ConfigurationError(f"openapi: document: {brief(name)}: give a table instead of {brief(found)}")


def _copied(given: Any) -> Any:
    """A copy that shares nothing: if ``given`` has one object in two places, ``deepcopy`` would keep that. Numbers that
    are names, as YAML has statuses, become text."""
    if isinstance(given, Mapping):
        return {str(name) if type(name) is int else name: _copied(value) for name, value in given.items()}
    return [_copied(each) for each in given] if isinstance(given, list) else given


def _fields(gate: AppGate) -> tuple[Field, ...]:
    """The fields of the dialect in use."""
    return tuple(field for dialect in DIALECTS[gate.settings.headers] for field in FIELDS[dialect])


def _fields_of_refusals(gate: AppGate) -> tuple[Field, ...]:
    return (_RETRY_AFTER[gate.settings.retry_after], *_fields(gate))


def _operations(gate: AppGate) -> dict[tuple[str, str], EndpointLimits]:
    """The endpoints by path, as OpenAPI writes it, and method."""
    return {
        (_VARIABLE.sub(r"{\1}", route.path), method): endpoint
        for endpoint in (endpoint_limits(gate, place) for place in places_of(gate) if not place.has_files)
        for route in endpoint.routes
        for method in route.methods
    }


def _limits_at(endpoint: EndpointLimits, method: str) -> list[Limit]:
    return [each for each in endpoint.limits if not each.shadow and (each.methods is None or method in each.methods)]


def _summary(limits: Iterable[Limit]) -> str:
    return f"at most {'; '.join(dict.fromkeys(map(_limit_text, limits)))}."


def _limit_text(limit: Limit) -> str:
    how_many = "what the plan of the client says" if limit.by_request else limit.text
    who = "address" if limit.type == LimitType.IP.value else limit.type
    counted = "" if limit.unit is None else f" (in {limit.unit})"
    return f"{how_many}{counted} for {'all clients together' if limit.type == EVERYONE.type else f'each {who}'}"


@cache
def _schemas(references: str) -> Document:
    schema = TypeAdapter(RateLimitProblem).json_schema(mode="serialization", ref_template=references)
    return {**schema.pop("$defs"), RateLimitProblem.__name__: schema}
