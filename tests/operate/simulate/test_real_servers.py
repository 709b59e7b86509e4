"""Logs that real servers have written: nginx, Apache, Caddy and gunicorn, each asked the same.

Traefik is in neither Debian nor PyPI: its format is held to lines of its documentation alone.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from flask_multilimit.simulation import LoggedRequest, read_logs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

START_SECONDS = 20
ASKED = [
    ("GET", "/items/1?page=2", {"User-Agent": 'an "odd" [agent] \\', "X-Api-Key": "k 1"}),
    ("HEAD", "/caf%C3%A9", {"Referer": "http://x/\xe9"}),
    ("POST", '/a"b', {}),
    ("GET", "/\\", {"X-Api-Key": "k2"}),
]
GARBAGE = b"\x16\x03\x01\x02\x00\x01\xfc\r\n\r\n"

NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{}}
http {{
    log_format own '$time_iso8601 $remote_addr "$request" $status $request_time "$http_x_api_key"';
    log_format json escape=json '{{"msec":"$msec","remote_addr":"$remote_addr","request":"$request","status":"$status",'
                                '"request_time":"$request_time","http_x_api_key":"$http_x_api_key"}}';
    access_log {folder}/combined.log combined;
    access_log {folder}/own.log own;
    access_log {folder}/json.log json;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    server {{ listen 127.0.0.1:{port}; location / {{ return 204; }} }}
}}
"""
APACHE = """
ServerRoot {folder}
ServerName localhost
PidFile {folder}/apache.pid
Listen 127.0.0.1:{port}
ErrorLog {folder}/error.log
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LogFormat "%h %l %u %t \\"%r\\" %>s %O \\"%{{Referer}}i\\" \\"%{{User-Agent}}i\\"" combined
LogFormat "%v:%p %h %l %u %t \\"%r\\" %>s %O \\"%{{Referer}}i\\" \\"%{{User-Agent}}i\\"" vhost_combined
LogFormat "%{{usec}}t %a %>s \\"%r\\" \\"%{{X-Api-Key}}i\\" %D" own
CustomLog {folder}/combined.log combined
CustomLog {folder}/vhost.log vhost_combined
CustomLog {folder}/own.log own
"""
MODULES = "/usr/lib/apache2/modules"
OWN_NGINX = '$time_iso8601 $remote_addr "$request" $status $request_time "$http_x_api_key"'
OWN_APACHE = '%{usec}t %a %>s "%r" "%{X-Api-Key}i" %D'
CADDY = """
{{
    admin off
    auto_https off
}}
http://127.0.0.1:{port} {{
    log {{
        output file {folder}/caddy.log
    }}
    respond 204
}}
"""
GUNICORN_APP = "def app(environ, start):\n    start('204 No Content', [])\n    return []\n"


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


def binary(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@contextmanager
def running(command: list[str], port: int, folder: Path) -> Iterator[None]:
    environment = {
        **os.environ,
        **dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "APACHE_RUN_DIR"), str(folder)),
    }
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for(port, process, folder)
        yield
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def wait_for(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:  # noqa: PERF203 - it is not listening yet
            time.sleep(0.02)
        else:
            return
    raise RuntimeError((folder / "output").read_text(errors="replace"))


def ask(port: int) -> None:
    for method, target, headers in ASKED:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
        connection.putrequest(method, target)
        for name, value in headers.items():
            connection.putheader(name, value.encode("latin-1"))
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        connection.getresponse().read()
        connection.close()
    with socket.create_connection(("127.0.0.1", port), START_SECONDS) as raw:
        raw.sendall(GARBAGE)
        raw.settimeout(START_SECONDS)
        while raw.recv(4096):
            pass


def assert_read(
    path: Path,
    *,
    format: str | None = None,  # noqa: A002
    fields: bool = False,
    tells_took: bool = False,
) -> None:
    """All that was asked, and the garbage as what it is."""
    logs = read_logs(path, format=format, fields=["X-Api-Key"] if fields else [])
    found: list[LoggedRequest] = list(logs)
    (file,) = logs.files

    assert file.malformed == 0, path.read_text(errors="replace")
    assert [each.method for each in found] == [method for method, _, _ in ASKED]
    assert [each.target for each in found] == [target for _, target, _ in ASKED]
    assert {each.address for each in found} == {"127.0.0.1"}
    assert all(abs(each.at / 1e6 - time.time()) < 600 for each in found)
    assert all(each.status in {204, 400, 404} for each in found)
    assert all(each.took is None or 0 <= each.took < 10_000_000 for each in found)
    assert all((each.took is not None) == tells_took for each in found)
    if fields:
        assert [each.fields.get("X-Api-Key") for each in found] == ["k 1", None, None, "k2"]


def test_nginx(tmp_path: Path) -> None:
    port, nginx = free_port(), binary("nginx")
    (tmp_path / "nginx.conf").write_text(NGINX.format(folder=tmp_path, port=port))
    with running([nginx, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")], port, tmp_path):
        ask(port)

    assert_read(tmp_path / "combined.log")
    assert_read(tmp_path / "own.log", format=OWN_NGINX, fields=True, tells_took=True)
    assert_read(tmp_path / "json.log", fields=True, tells_took=True)


def test_apache(tmp_path: Path) -> None:
    port, apache = free_port(), binary("apache2")
    (tmp_path / "apache.conf").write_text(APACHE.format(folder=tmp_path, port=port, modules=MODULES))
    with running([apache, "-f", str(tmp_path / "apache.conf"), "-D", "FOREGROUND"], port, tmp_path):
        ask(port)

    assert_read(tmp_path / "combined.log")
    assert_read(tmp_path / "vhost.log")
    assert_read(tmp_path / "own.log", format=OWN_APACHE, fields=True, tells_took=True)


def test_caddy(tmp_path: Path) -> None:
    port, caddy = free_port(), binary("caddy")
    (tmp_path / "Caddyfile").write_text(CADDY.format(folder=tmp_path, port=port))
    with running([caddy, "run", "--config", str(tmp_path / "Caddyfile"), "--adapter", "caddyfile"], port, tmp_path):
        ask(port)

    assert_read(tmp_path / "caddy.log", fields=True, tells_took=True)


def test_gunicorn(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "served.py").write_text(GUNICORN_APP)
    log = tmp_path / "access.log"
    command = [sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{port}", "--access-logfile", str(log)]
    with running([*command, "served:app"], port, tmp_path):
        ask(port)

    assert_read(log)
