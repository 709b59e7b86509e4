"""Rate limiting for Flask: stackable limits, all of them checked in one atomic step.

Here is what view code needs. :mod:`flask_multilimit.engine` has the limiter for code without an app,
:mod:`flask_multilimit.control` what changes limits while the app runs, :mod:`flask_multilimit.signals` the signals.
"""

from __future__ import annotations

from .declare.decorators import RateLimiter, exempt, rate_limiter
from .declare.limiter import Reserve
from .declare.subjects import DEFAULT, GLOBAL, IP, USER, LimitType
from .engine import Ban, Calendar, Concurrent, ConfigurationError, ConfigurationWarning, Decision, MultiLimitError, Rule
from .extension import MultiLimit
from .serve.refusal import AccessDenied, RateLimitExceeded, StorageUnavailable, problem
from .serve.settle import settle
from .serve.state import current_decision

__all__ = [
    "DEFAULT",
    "GLOBAL",
    "IP",
    "USER",
    "AccessDenied",
    "Ban",
    "Calendar",
    "Concurrent",
    "ConfigurationError",
    "ConfigurationWarning",
    "Decision",
    "LimitType",
    "MultiLimit",
    "MultiLimitError",
    "RateLimitExceeded",
    "RateLimiter",
    "Reserve",
    "Rule",
    "StorageUnavailable",
    "current_decision",
    "exempt",
    "problem",
    "rate_limiter",
    "settle",
]
