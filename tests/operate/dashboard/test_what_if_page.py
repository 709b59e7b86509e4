"""The page What if, without JavaScript; and uploads that it refuses."""

import gc
import io
import re
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.datastructures import FileStorage
from werkzeug.test import TestResponse, encode_multipart

from flask_multilimit.operate.dashboard import whatif
from flask_multilimit.operate.dashboard.whatif import MOST_UPLOADED
from flask_multilimit.recording import Recorder
from support.interrupts import interrupted

from .conftest import ROOT, browser_of, made
from .test_now import send_requests
from .test_what_if import BUSY, TRAFFIC, line

PAGE = ROOT + "what-if"
LOG = "".join(f"{each}\n" for each in TRAFFIC).replace("/search", "/open").encode()


def upload(browser: FlaskClient, content: bytes = LOG, name: str = "access.log", **fields: str) -> TestResponse:
    token = re.search(r'name="token" value="([^"]+)"', browser.get(PAGE).text)
    assert token is not None
    boundary, body = encode_multipart({"token": token[1], **fields, "log": FileStorage(io.BytesIO(content), name)})
    return browser.post(PAGE, data=body, content_type=f'multipart/form-data; boundary="{boundary}"')


def api_answer(browser: FlaskClient, query: str) -> TestResponse:
    return browser.get(f"{ROOT}api/what-if?{query}")


def test_upload_shows_a_table_and_the_data_of_the_slider(ada: FlaskClient) -> None:
    answer = upload(ada, endpoint="open", count="10")

    assert answer.status_code == 200
    assert "35 requests of 2 clients" in answer.text
    assert re.search(r'<th scope="row" class="n">10</th><td class="n">20</td><td class="n">57.1 %</td>', answer.text)
    assert '<div class="peaks"><script type="application/json">{"window":"60 s"' in answer.text
    assert BUSY in answer.text


def test_recorded_traffic_needs_no_upload(app: Flask, ada: FlaskClient, tmp_path: Path) -> None:
    recorder = Recorder(app, tmp_path)
    for _ in range(4):
        ada.get("/open")
    recorder.flush()

    page, json = ada.get(PAGE + "?endpoint=open"), api_answer(ada, "endpoint=open").get_json()
    recorder.close()

    assert "Requests of one client: 4" in page.text
    assert json["requests"] == 4
    assert json["counts"][-1]["count"] == 4
    assert "127.0.0.1" not in page.text


def test_recorded_client_is_named_only_when_known_from_traffic(app: Flask, ada: FlaskClient, tmp_path: Path) -> None:
    recorder = Recorder(app, tmp_path)
    send_requests(app, 5)
    app.test_client().get("/", environ_base={"REMOTE_ADDR": "203.0.113.8"})
    recorder.flush()

    known, unknown = api_answer(ada, "endpoint=show").get_json()["busiest"]
    page = ada.get(PAGE + "?endpoint=show").text
    recorder.close()

    link = f"{ROOT}subject?type=ip&value=203.0.113.7"
    assert (known["name"], known["requests"], known["link"]) == ("203.0.113.7", 5, link)
    assert ada.get(link).status_code == 200
    assert re.fullmatch("[0-9a-f]{16}", unknown["name"]), "a client that was never refused stays a hash"
    assert unknown["link"] == ""
    assert f'["203.0.113.7",5,5,"{link}"]' in page


def test_page_without_recorded_traffic_is_no_error(app: Flask, ada: FlaskClient, tmp_path: Path) -> None:
    recorder = Recorder(app, tmp_path)

    page, chinese, asked_for = (ada.get(PAGE + query) for query in ("", "?lang=zh", "?endpoint=open"))
    recorder.close()

    assert (page.status_code, chinese.status_code, asked_for.status_code) == (200, 200, 400)
    assert "no requests to learn from" in page.text


def test_page_suggests_the_endpoints_of_the_app_but_not_its_own(ada: FlaskClient) -> None:
    suggested = re.findall('<option value="([^"]+)">', ada.get(PAGE).text)
    assert sorted(suggested) == ["api.mine", "open", "show", "static"]


def test_page_without_a_recorder_says_how_to_add_one(ada: FlaskClient) -> None:
    assert "Recorder(app, " in ada.get(PAGE).text
    assert api_answer(ada, "").get_json() is None


@pytest.mark.parametrize(
    ("fields", "told"), [({"endpoint": "opne"}, "did you mean"), ({"count": "-1"}, "count must be")]
)
def test_wrong_field_is_explained_on_the_page(ada: FlaskClient, fields: dict[str, str], told: str) -> None:
    answer = upload(ada, LOG, **fields)

    assert answer.status_code == 400
    assert re.search(f'role="alert">[^<]*{told}', answer.text)
    (value,) = fields.values()
    assert f'value="{value}"' in answer.text, "what was typed is still there"


def test_wrong_field_is_explained_as_json(app: Flask, ada: FlaskClient, tmp_path: Path) -> None:
    Recorder(app, tmp_path).close()
    answer = api_answer(ada, "endpoint=opne")
    assert (answer.status_code, answer.mimetype) == (400, "application/json")
    assert "did you mean" in answer.get_json()["error"]


def test_author_without_the_right_to_change_may_upload() -> None:
    ada = browser_of("ada", made(dashboard={"may_change": lambda _: False}))
    assert upload(ada).status_code == 200
    assert "choose a log" in upload(ada, name="").text
    assert ada.post(PAGE, data={"log": (io.BytesIO(LOG), "access.log")}).status_code == 403


def test_too_large_upload_is_refused(ada: FlaskClient) -> None:
    answer = upload(ada, b"x" * 10_000_000)
    assert answer.status_code == 413
    assert "more than 5 MB" in answer.text
    assert upload(ada, (line(1, BUSY, "/open") + "\n").encode() * (MOST_UPLOADED // 100)).status_code == 200


class Unread(io.RawIOBase):
    """A body whose reading is an error."""

    def readinto(self, buffer: Any, /) -> int:  # noqa: ARG002
        raise AssertionError("read")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}, 411),
        ({"CONTENT_LENGTH": str(10**12)}, 413),
    ],
    ids=["chunked", "huge"],
)
def test_body_of_unknown_or_huge_size_is_not_read(ada: FlaskClient, body: dict[str, Any], status: int) -> None:
    assert ada.post(PAGE, environ_overrides={"wsgi.input": Unread(), **body}).status_code == status


def test_uploads_of_one_author_are_rate_limited(ada: FlaskClient) -> None:
    assert [upload(ada).status_code for _ in range(7)] == [200] * 6 + [429]


def test_interrupted_reading_of_a_log_leaves_what_if_free() -> None:
    def read() -> None:
        with whatif._one_at_a_time():
            pass

    for point in interrupted(read):
        gc.collect()  # closes a block that was interrupted on the way in or out
        assert not whatif._readers, point


def test_only_one_log_is_read_at_a_time(
    app: Flask, ada: FlaskClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Recorder(app, tmp_path).close()
    with monkeypatch.context() as patch:
        meanwhile = list[TestResponse]()

        def save(_: FileStorage, path: Path) -> None:
            patch.undo()
            meanwhile.extend((upload(ada), ada.get(PAGE), api_answer(ada, "")))
            path.write_bytes(LOG)

        patch.setattr(FileStorage, "save", save)
        assert upload(ada).status_code == 200
    uploaded, shown, asked = meanwhile

    assert [each.status_code for each in (uploaded, shown, asked)] == [429, 429, 429]
    assert "Another log is being read" in shown.text
    assert upload(ada).status_code == 200
    assert ada.get(PAGE).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_cannot_start_a_replay_in_the_browser_of_a_visitor(
    app: Flask, ada: FlaskClient, tmp_path: Path, site: str
) -> None:
    recorder = Recorder(app, tmp_path)
    ada.get("/open")
    recorder.close()
    shown, asked = (
        ada.get(path + "?endpoint=open", headers={"Sec-Fetch-Site": site}) for path in (PAGE, ROOT + "api/what-if")
    )

    assert (shown.status_code, asked.status_code) == (403, 403)
    assert "Send the form" in shown.text
    assert "1 requests of" not in shown.text
    assert 'value="open"' in shown.text, "a link from another site fills in the form"


def test_page_says_when_requests_or_clients_are_cut_off(ada: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line(n, f"203.0.113.{n}", "/open") + "\n" for n in range(30)]
    monkeypatch.setattr(whatif, "MOST_REQUESTS", 20)
    of_requests = upload(ada, "".join(lines).encode(), endpoint="open").text
    monkeypatch.setattr(whatif, "MOST_CLIENTS", 10)
    of_clients = upload(ada, "".join(lines).encode(), endpoint="open").text

    assert "20 requests of 20 clients" in of_requests
    assert "only the first 20 requests count" in of_requests
    assert "10 requests of 10 clients" in of_clients
    assert "only the first 10 requests count" in of_clients


def zstd_with_a_window_of(log: int) -> bytes:
    """A log that needs a decoder with a window of ``2**log`` bytes."""
    zstandard = pytest.importorskip("zstandard")
    parameters = zstandard.ZstdCompressionParameters(window_log=log, enable_ldm=True)
    packed = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return bytes(packed.compress(LOG * 1000) + packed.flush())


@pytest.mark.parametrize(
    "content",
    [
        b"\x28\xb5\x2f\xfd\xff\xff\xff",
        b"\x1f\x8b\x08\0\0\0\0\0\0\0abc",
        LOG.replace(b"/2026:", b"/9999:"),
        LOG.replace(b"/2026:", b"/0001:"),
    ],
    ids=["broken zstd", "broken gzip", "year 9999", "year 1"],
)
def test_damaged_log_is_no_server_error(ada: FlaskClient, content: bytes) -> None:
    assert upload(ada, content).status_code in {200, 400}


def test_log_that_needs_too_much_memory_to_unpack_is_a_400(ada: FlaskClient) -> None:
    assert upload(ada, zstd_with_a_window_of(30)).status_code == 400
