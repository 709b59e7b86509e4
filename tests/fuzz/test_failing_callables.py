"""Clients and callables of rules that fail at random: no client gets looser rules than those declared for it.

A model knows the plan of each subject, and notes what the callable has answered for it. Each request that reaches the
view was checked by the last good rules of its own subject, or else by the fallback. Where several clients may be one
subject, it was checked by the fallback, or without one by the last rules that limited it, never by "no limit".
"""

from typing import Any

import pytest
from flask import Flask, request
from hypothesis import given
from hypothesis import strategies as st

from flask_multilimit import LimitType, MultiLimit, Rule, rate_limiter
from flask_multilimit.engine.rules import REFUSE_ALL
from support.clock import Clock
from support.doubles import RecordingStorage
from support.effort import tries

PLANS: dict[str, list[Any]] = {
    "": ["1/minute"],
    "ann": ["2/minute", 0],
    "bob": ["9/minute; 20/hour", "3/minute"],
    "staff": [None, "9/minute"],
}
NONSENSE: list[Any] = [5, -1, True, "often", [None], {"count": 1}, b"", object()]
KEYS = ["", "ann", "bob", "staff", "ann\n", "bob:staff", "x" * 300, "\x00"]
FALLBACK = (Rule(60, 2),)
TYPES: dict[str, Any] = {
    "key": lambda: request.args["key"],
    "user": LimitType.USER,
    "user or address": LimitType.USER,
    "address": LimitType.IP,
    "everyone": LimitType.DEFAULT,
    "user and address": (LimitType.USER, LimitType.IP),
    "address and key": (LimitType.IP, lambda: request.args["key"]),
}
OF_SEVERAL = {"address", "everyone"}


def rules_of(plan: Any) -> tuple[Rule, ...]:
    if plan is None:
        return ()
    return (REFUSE_ALL,) if plan == 0 else tuple(map(Rule.parse, plan.split("; ")))


class Shop:
    """An app, the model of its customers, and what it asks of its storage."""

    def __init__(self, type_: str, fallback: Any) -> None:
        self.answer: Any = None
        self.type = type_
        self.fallback: tuple[Rule, ...] | None = fallback
        self.last_good: dict[str, tuple[Rule, ...]] = {}
        self.storage = RecordingStorage(Clock())
        app = Flask(__name__)
        anonymous = "ip" if type_ == "user or address" else "shared"
        app.config |= {"MULTILIMIT_ANONYMOUS_USER": anonymous, "MULTILIMIT_DENY_CACHE": 0}
        app.logger.disabled = True
        MultiLimit(app, storage=self.storage, user_loader=lambda: request.args["key"])
        type_of = TYPES[type_]
        limiter = rate_limiter(type=type_of, name="key", rules=self._rules, fallback=fallback)
        app.add_url_rule("/", "view", limiter(lambda: "ok"))
        self.client = app.test_client()

    def _rules(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def get(self, key: str, answer: Any, *, fails: bool) -> None:
        self.answer = answer
        self.storage.checks.clear()
        status = self.client.get("/", query_string={"key": key}).status_code
        expected = self._expected(key, answer, fails=fails)
        checked = tuple(hit.rule for hit in self.storage.checks[0]) if self.storage.checks else ()

        assert checked == (expected or ())
        assert status == 500 if expected is None else status in {200, 429}

    def _expected(self, key: str, answer: Any, *, fails: bool) -> tuple[Rule, ...] | None:
        several = self.type in OF_SEVERAL or not key
        subject = "" if several else key
        if not fails:
            if rules_of(answer) or not several:
                self.last_good[subject] = rules_of(answer)
            return rules_of(answer)
        if several and self.fallback is not None:
            return self.fallback
        return self.last_good.get(subject, self.fallback)


@pytest.mark.parametrize("fallback", [None, FALLBACK], ids=["no fallback", "fallback"])
@pytest.mark.parametrize("type_", TYPES)
@tries()
@given(data=st.data())
def test_client_never_gets_looser_rules_than_declared_for_it(type_: str, fallback: Any, data: Any) -> None:
    shop = Shop(type_, fallback)
    for _ in range(data.draw(st.integers(1, 12))):
        key = data.draw(st.sampled_from(KEYS))
        if data.draw(st.booleans()):
            answer = data.draw(st.sampled_from([*NONSENSE, RuntimeError("away"), KeyError("page")]))
            shop.get(key, answer, fails=True)
        else:
            shop.get(key, data.draw(st.sampled_from(PLANS.get(key, ["1/minute"]))), fails=False)
