"""`check_hits`: the MultiLimit of the app checks hits that another extension makes."""

import json
from functools import partial

from flask import Flask

from flask_multilimit import MultiLimit, RateLimiter, current_decision, rate_limiter
from flask_multilimit.engine import Hits, hits_for
from flask_multilimit.insight.limits import limiters_of
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.signals import limits_checked
from support.asking import heard


def two_rules(subject: str = "ann") -> Hits:
    tight = hits_for("1/minute", scope="mail", subject=f"plan:{subject}")
    wide = hits_for("5/hour", scope="mail", subject=f"plan:{subject}")
    return Hits((*tight, *wide))


def test_hits_of_an_extension_are_checked_all_or_nothing(app: Flask) -> None:
    multilimit, hits = MultiLimit(app), two_rules()
    check = partial(multilimit.check_hits, hits, scope="mail", subject="plan:ann")
    app.add_url_rule("/", "index", lambda: "yes" if check().allowed else "no")
    client = app.test_client()
    answers = [client.get("/") for _ in range(3)]

    assert [answer.text for answer in answers] == ["yes", "no", "no"]
    assert answers[2].headers["RateLimit"].startswith('"plan-60s";r=0')
    assert '"plan-3600s";r=4' in answers[2].headers["RateLimit"]


def test_signal_has_scope_and_subjects_of_checked_hits(app: Flask) -> None:
    multilimit = MultiLimit(app)

    with app.test_request_context(), heard(app, limits_checked) as signals:
        multilimit.check_hits(two_rules(), scope="mail", subject="plan:ann")

    assert [(told["endpoint"], told["subjects"]) for _, told in signals] == [("mail", {"plan": "ann"})]


def test_some_hits_of_a_check_can_be_refunded(app: Flask) -> None:
    multilimit, hits = MultiLimit(app), two_rules()
    with app.test_request_context():
        decision = multilimit.check_hits(hits, scope="mail", subject="plan:ann")

        after = multilimit.refund(decision, [hits[0]])

        assert [status.remaining for status in after.statuses] == [1, 4]
        assert [status.remaining for status in current_decision.statuses] == [1, 4]
        assert multilimit.check_hits(hits, scope="mail", subject="plan:ann").allowed


def test_limits_of_an_extension_are_listed_once_at_their_endpoint(app: Flask) -> None:
    multilimit = MultiLimit(app)
    app.add_url_rule("/", "index", lambda: "ok")

    def listing(_: Flask, endpoint: str) -> dict[str, list[RateLimiter]]:
        return {"mail plans": [rate_limiter("5/hour", type=lambda: "ann", name="plan")]} if endpoint == "index" else {}

    multilimit.add_listing(listing)
    multilimit.add_listing(listing)

    index, static = json.loads(app.test_cli_runner().invoke(args=["multilimit", "limits", "--json"]).output)[
        "endpoints"
    ]
    assert [(each["name"], each["type"], each["from"]) for each in index["limits"]] == [
        ("plan-3600s", "plan", "mail plans")
    ]
    assert static["limits"] == []


def test_override_that_fits_limits_of_an_extension_is_listed_beside_one_that_does_not(app: Flask) -> None:
    multilimit = MultiLimit(app)
    limits = [rate_limiter("5/minute; 9/hour", type=lambda: "ann", name="plan")]
    multilimit.add_listing(lambda _, endpoint: {"mail plans": limits} if endpoint == "index" else {})
    app.add_url_rule("/", "index", lambda: "ok")
    with app.app_context():
        override = partial(multilimit.control.override, "index", lasting=True, force=True)
        override(rule="plan-60s", rules={"timeout": 9})
        override(rule="plan-3600s", rules="2/hour")

    listed = {name: rule.count for each in limiters_of(gate_of(app)) for name, rule in each.planned.rules}

    assert listed == {"plan-60s": 5, "plan-3600s": 2}
