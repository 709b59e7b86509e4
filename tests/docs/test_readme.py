"""The quick start of README is the app that its first command serves, and answers `curl` as README shows."""

import re
import runpy
import socket

from docs.snippets import blocks_of
from support.folders import EXAMPLES, ROOT
from support.processes import flask_run

README = ROOT / "README.md"
CURL = "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: curl/8.10.1\r\nAccept: */*\r\n\r\n"
PASSING = re.compile(r"^(Server|Date): .*$", re.MULTILINE)
"""Fields of Flask's server, which differ from one machine and moment to another."""


def _shown(mark: str) -> str:
    """The text of the block below a mark."""
    found = re.search(
        rf"^<!-- {mark}: quick-start -->\n```\w+\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found is not None, mark
    return found[1]


def _asked(port: int, path: str) -> str:
    """What `curl -i` prints."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(CURL.format(port=port, path=path).encode())
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    return received.decode().replace("\r\n", "\n")


def test_quick_start_is_the_example_that_the_first_command_serves() -> None:
    (command,) = re.findall(r"^\$ pip install \. && flask --app examples/(\w+) run$", README.read_text(), re.MULTILINE)

    assert (EXAMPLES / f"{command}.py").read_text().endswith(f'"""\n\n{_shown("example")}')


def test_curl_output_is_as_shown() -> None:
    command, _, output = _shown("curl").partition("\n")
    url = re.fullmatch(r"\$ curl -i http://127\.0\.0\.1:5000(/\w+)", command)
    assert url is not None

    with flask_run("quickstart") as served:
        answers = [_asked(served.port, url[1]) for _ in range(11)]

    assert PASSING.sub("", answers[0]) == PASSING.sub("", output)
    admitted, refused = answers[:10], answers[10]
    assert {answer.splitlines()[0] for answer in admitted} == {"HTTP/1.1 200 OK"}
    *fields, retry_after = _shown("response").splitlines()
    assert set(map(_without_times, fields)) <= set(map(_without_times, refused.splitlines()))
    assert retry_after.split(":")[0] in refused


def _without_times(field: str) -> str:
    return re.sub(r"t=\d+", "t=", field)


def test_index_page_shows_the_same_quick_start() -> None:
    assert [block for block in blocks_of(ROOT / "docs" / "index.md") if block.text == _shown("example")]


def test_release_makes_readme_links_absolute() -> None:
    absolute = runpy.run_path(str(ROOT / ".github" / "absolute_links.py"))["absolute"]

    page = absolute(README.read_text(), "https://example.com/shop/repository", "v1.0.0")

    links = re.findall(r"\]\(([^)]+)\)", page)
    assert not [link for link in links if not link.startswith("https://")]
    assert "](https://example.com/shop/repository/blob/v1.0.0/docs/tutorial.md)" in page
    assert "](https://example.com/shop/repository/raw/v1.0.0/docs/_static/dashboard-now.png)" in page
    assert absolute(page, "https://example.org", "v2") == page


def test_readme_says_whether_there_is_a_release() -> None:
    unreleased = "(Unreleased)" in (ROOT / "CHANGELOG.md").read_text().split("## ", 2)[1]
    assert unreleased == ("There is no release yet" in README.read_text())
