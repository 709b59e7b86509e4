"""How a check is decided when the storage fails."""

from __future__ import annotations

from ....hits import Hit, OnStorageError, check_policy

_STRICTEST_FIRST: tuple[OnStorageError, ...] = ("raise", "deny", "local", "allow")


class Policy:
    """The policy of a guard. A hit's own ``on_storage_error`` comes first."""

    def __init__(self, default: OnStorageError) -> None:
        check_policy(default, "on_error")
        self.default: OnStorageError = default

    def of(self, hit: Hit) -> OnStorageError:
        """A shadow never refuses, so it cannot raise or deny either."""
        policy = hit.on_storage_error or self.default
        return "local" if hit.shadow and policy in {"raise", "deny"} else policy

    def strictest(self, hits: tuple[Hit, ...]) -> OnStorageError:
        policies = {self.of(hit) for hit in hits}
        return next(policy for policy in _STRICTEST_FIRST if policy in policies)

    def limited_here(self, hits: tuple[Hit, ...]) -> tuple[Hit, ...]:
        """The hits that this process limits by itself."""
        local = tuple(hit for hit in hits if self.of(hit) == "local")
        return hits if len(local) == len(hits) else local
