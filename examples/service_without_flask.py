"""A limiter for any Python code: a Celery task, a command, another framework. It does not use Flask.

    python examples/service_without_flask.py
    python examples/service_without_flask.py redis://localhost:6379/0

The first keeps its quotas in the process, so each run starts from zero. The second keeps them on a server.
"""

from __future__ import annotations

import sys

from flask_multilimit.engine import Decision, Limiter, Rule, hits_for


class SlidingWindowRateLimiter:
    """Admits each user ``limit`` times in any ``window_size`` seconds.

    ``storage`` is a URI or a client object of ``redis``. All limiters with the same ``scope`` in the same storage
    share its quotas.
    """

    def __init__(self, storage: object, limit: int, window_size: float, *, scope: str) -> None:
        self._limiter = Limiter(storage)
        self._rule = Rule(time=window_size, count=limit)
        self._scope = scope

    def is_allowed(self, user_id: str) -> bool:
        return self.check(user_id).allowed

    def check(self, user_id: str) -> Decision:
        """The same with details: what is left, and how long to wait."""
        return self._limiter.check(hits_for(self._rule, scope=self._scope, subject=f"user:{user_id}"))

    def close(self) -> None:
        self._limiter.close()


def main() -> None:
    storage = sys.argv[1] if len(sys.argv) > 1 else "memory://"
    limiter = SlidingWindowRateLimiter(storage, limit=3, window_size=60, scope="send-mail")
    for user in ("ann", "ann", "bob", "ann", "ann"):
        decision = limiter.check(user)
        if decision.allowed:
            print(f"{user}: allowed, {decision.remaining} left")
        else:
            print(f"{user}: refused, try again in {decision.retry_after:.0f} s")
    limiter.close()


if __name__ == "__main__":
    main()
