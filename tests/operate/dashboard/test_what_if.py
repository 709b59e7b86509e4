"""What each count would have refused in an uploaded log."""

import gzip
import io
from datetime import datetime, timezone

import pytest
from flask import Flask
from werkzeug.datastructures import FileStorage

from flask_multilimit import IP, MultiLimit, rate_limiter
from flask_multilimit.dashboard import Dashboard
from flask_multilimit.engine import ConfigurationError
from flask_multilimit.operate.dashboard import whatif
from flask_multilimit.operate.dashboard.whatif import WhatIf, WhatIfForm, of_upload
from support.asking import view

from .conftest import ROOT

BUSY, CALM = "203.0.113.66", "198.51.100.7"


@pytest.fixture
def app() -> Flask:
    return shop()


def shop() -> Flask:
    app = Flask("shop")
    app.secret_key = "key of the tests"
    app.register_blueprint(Dashboard(MultiLimit(app), authorize=lambda: "ada"))
    app.add_url_rule("/search", "search", rate_limiter(type=IP, rules="12/minute; 100/hour")(view()))
    app.add_url_rule("/open", "open", view())
    return app


def log_of(*lines: str) -> FileStorage:
    return FileStorage(io.BytesIO("".join(f"{each}\n" for each in lines).encode()), "access.log")


def line(second: int, address: str, path: str = "/search") -> str:
    return f'{address} - - [22/Nov/2026:07:{second // 60:02}:{second % 60:02} +0000] "GET {path} HTTP/1.1" 200 5'


TRAFFIC = [line(second, BUSY) for second in range(30)] + [line(30 + 10 * n, CALM) for n in range(5)]


def asked(app: Flask, *lines: str, **question: str) -> WhatIf:
    with app.test_request_context(f"{ROOT}what-if"):
        return of_upload(WhatIfForm(**question), log_of(*lines))


def test_each_count_shows_its_refused_requests_and_clients(app: Flask) -> None:
    answer = asked(app, *TRAFFIC, count="10")

    assert (answer.requests, answer.clients, answer.chosen) == (35, 2, 10)
    assert (answer.last - answer.first, datetime.fromtimestamp(answer.first, timezone.utc).hour) == (70, 7)
    assert (answer.peaks.p50, answer.peaks.max) == (5, 30)
    counts = {each.count: (each.requests, each.clients) for each in answer.counts}
    assert counts[10] == (20, 1)
    assert counts[30] == (0, 0)
    assert [(each.name, each.most, each.requests) for each in answer.busiest] == [(BUSY, 30, 30), (CALM, 5, 5)]
    limiter = "rate_limiter(type=IP, rules=[Rule(time=60, count=10)])"
    assert answer.declaration == f"MultiLimit(app, application_limits={limiter})"


def test_all_clients_together_have_no_link(app: Flask) -> None:
    assert [each.link for each in asked(app, *TRAFFIC, type="default").busiest] == [""]


def test_fields_are_read_without_spaces_around_them() -> None:
    assert WhatIfForm.of({"endpoint": " search ", "type": " ", "count": "9 "}) == WhatIfForm("search", count="9")


def test_clients_with_equal_peaks_are_sorted_by_name(app: Flask) -> None:
    names = ["203.0.113.3", "203.0.113.1", "203.0.113.2"]
    answer = asked(app, *(line(second, name) for second, name in enumerate(names)))
    assert [each.name for each in answer.busiest] == sorted(names)


def test_counts_say_why_they_are_shown_and_a_shadow_is_not_in_force(app: Flask) -> None:
    trial = rate_limiter(type=IP, rules="11/minute", shadow=True)
    app.view_functions["search"] = trial(app.view_functions["search"])

    answer = asked(app, *TRAFFIC, endpoint="search", count="10", refuse_at_most="60%")

    why = {each.count: each.why for each in answer.counts if each.why}
    assert why == {10: ["asked"], 12: ["in force"], 9: ["few requests"], 5: ["few clients"]}


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ({"endpoint": "serch"}, 'did you mean "search"'),
        ({"window": "soon"}, "give seconds"),
        ({"window": "0"}, "time must be"),
        ({"window": "nan"}, "time must be"),
        ({"window": "1e400"}, "time must be"),
        ({"count": "0"}, "count must be"),
        ({"count": "many"}, "the count as a number"),
        ({"count": "9" * 5000}, "the count as a number"),
        ({"refuse_at_most": "all"}, "'all': give a share"),
        ({"refuse_at_most": "1e-99999999"}, "give a share"),
        ({"refuse_at_most": "200%"}, "more than all"),
        ({"refuse_at_most": "100%"}, "less than 1"),
        ({"type": "api_key"}, "give one of default, ip, user"),
    ],
)
def test_wrong_field_is_an_error(app: Flask, question: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        asked(app, *TRAFFIC, **question)


def test_lines_left_out_are_counted_by_reason(app: Flask) -> None:
    answer = asked(app, *TRAFFIC, "nonsense", "nonsense", "x" * 100_000)
    assert [(each.lines, each.why) for each in answer.left_out] == [(2, "not in the format"), (1, "too long")]


def test_compressed_upload_is_unpacked_up_to_a_maximum(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whatif, "MOST_UNPACKED", 1000)
    packed = gzip.compress((line(1, BUSY) + "\n").encode() * 10_000)

    with app.test_request_context(f"{ROOT}what-if"):
        answer = of_upload(WhatIfForm(), FileStorage(io.BytesIO(packed), "bomb.gz"))

    assert answer.requests < 20
    assert [each.why for each in answer.left_out] == ["not read to its end: only its first 1,000 bytes are read"]


@pytest.mark.parametrize("name", ["/nowhere/access.log", "../nowhere/access.log", "\x00../..\udcff"])
def test_file_name_of_an_upload_is_never_opened(app: Flask, name: str) -> None:
    with app.test_request_context(f"{ROOT}what-if"):
        answer = of_upload(WhatIfForm(), FileStorage(io.BytesIO("\n".join(TRAFFIC).encode()), name))
    assert (answer.source, answer.requests) == (name, len(TRAFFIC))
