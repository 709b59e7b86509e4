"""Flask-Limiter's names on flask_multilimit: an app written for it changes one import."""

from __future__ import annotations

from .checks import RequestLimit
from .constants import ExemptionScope, HeaderNames
from .declared import ApplicationLimit, Limit, MetaLimit, RouteLimit
from .errors import RateLimitExceeded
from .limiter import Limiter
from .util import get_remote_address

HEADERS = HeaderNames
"""The name of :class:`HeaderNames` before Flask-Limiter 4."""

__version__ = "4.1.1"
"""The version of Flask-Limiter whose names these are."""

__all__ = [
    "HEADERS",
    "ApplicationLimit",
    "ExemptionScope",
    "HeaderNames",
    "Limit",
    "Limiter",
    "MetaLimit",
    "RateLimitExceeded",
    "RequestLimit",
    "RouteLimit",
    "get_remote_address",
]
