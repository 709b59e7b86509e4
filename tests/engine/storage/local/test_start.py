"""Starting the server of local://: when, where, and what happens when it cannot start."""

import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from flask import Flask

import flask_multilimit
from engine.storage.local.places import Place
from engine.storage.local.users import HITS, MANY
from flask_multilimit import MultiLimit, current_decision, rate_limiter
from flask_multilimit.engine import (
    ConfigurationError,
    GuardedStorage,
    Layers,
    Limiter,
    RedisStorage,
    StorageError,
    storage_from_uri,
)
from flask_multilimit.engine.decision import FALLBACKS
from flask_multilimit.engine.storage import local
from flask_multilimit.engine.storage.local import server as local_server
from flask_multilimit.engine.storage.local import supervisor
from flask_multilimit.engine.storage.redis.connections import TimedUnixConnection
from support.doubles import raising
from support.waiting import until

NOBODY = 65_534


@pytest.fixture
def program(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in the place of the server's program, which it can run as ``$0.real``."""

    def install(script: str) -> None:
        real, new = local_server.find_program(), place.directory.with_name("valkey-server")
        assert real is not None
        new.write_text(f"#!/bin/sh\n{script}\n")
        new.chmod(0o700)
        new.with_name("valkey-server.real").symlink_to(real)
        monkeypatch.setattr(local, "find_program", lambda: new)
        monkeypatch.setattr(local_server, "find_program", lambda: new)

    return install


def test_server_starts_from_a_package_in_an_archive(place: Place, tmp_path: Path) -> None:
    package = Path(flask_multilimit.__file__).parent
    archive = shutil.make_archive(str(tmp_path / "app"), "zip", package.parent, package.name)
    program = f"""
import sys
sys.path.insert(0, {archive!r})
from flask_multilimit.engine import Limiter, Rule, hits_for, storage_from_uri
print(Limiter(storage_from_uri({place.uri!r}, timeout=10)).check(hits_for("1/hour", scope="x")).decided_by)
"""

    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)

    assert (run.stdout, run.stderr) == ("storage\n", "")


def test_one_server_starts_for_a_process_whose_standard_streams_are_closed(place: Place, tmp_path: Path) -> None:
    """It opens files of the server in their places."""
    said = tmp_path / "said"
    program = f"""
from pathlib import Path
from engine.storage.local.places import Place
from flask_multilimit.engine import Limiter, hits_for, storage_from_uri
limiter = Limiter(storage_from_uri({place.uri!r}, timeout=10))
decided_by = limiter.check(hits_for("1/hour", scope="x")).decided_by
place = Place(Path({str(place.directory)!r}))
Path({str(said)!r}).write_text(f"{{decided_by}} {{len(place.supervisors())}} {{len(place.servers())}}")
"""
    command = [sys.executable, "-c", program]
    tests = os.pathsep.join(filter(None, sys.path))

    subprocess.run(["/bin/sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command], env={"PYTHONPATH": tests}, check=True)

    assert said.read_text() == "storage 1 1"


def test_no_directory_is_made_before_the_first_check(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    app = Flask(__name__)
    app.config.update(MULTILIMIT_STORAGE_URI=place.uri, MULTILIMIT_STORAGE_TIMEOUT=10)
    multilimit = MultiLimit(app)
    app.add_url_rule("/", "index", rate_limiter(rules="1/hour")(lambda: str(current_decision.decided_by)))

    assert "index" in app.test_cli_runner().invoke(args=["multilimit", "limits"]).output
    assert not place.directory.exists()

    assert app.test_client().get("/").text == "storage"
    assert app.test_client().get("/").status_code == 429
    assert place.directory.exists()
    assert caplog.messages == [], "a server that does not run yet is not down"
    multilimit.close()


def test_start_of_the_server_does_not_count_towards_the_timeout_of_a_check(
    place: Place, program: Callable[[str], None]
) -> None:
    program('sleep 1.2; exec "$0.real" "$@"')
    limiter = Limiter(GuardedStorage(storage_from_uri(place.uri, timeout=1), on_error="raise"))

    assert limiter.check(HITS).decided_by not in FALLBACKS
    assert limiter.health().error is None
    limiter.close()


def test_path_in_the_uri_may_contain_percent_encoded_characters(place: Place) -> None:
    limiter = Limiter(storage_from_uri(f"{place.uri.removesuffix('limits')}li%20m%3Fits%25", timeout=10))

    assert limiter.check(HITS).allowed

    made = place.directory.with_name("li m?its%")
    assert made.joinpath("socket").is_socket()
    limiter.close()


def test_only_the_owner_has_access_to_the_files(place: Place, limiter: Limiter) -> None:
    before = os.umask(0)
    try:
        limiter.check(HITS)
    finally:
        os.umask(before)

    assert {path.lstat().st_mode & 0o077 for path in (place.directory, *place.directory.iterdir())} == {0}


def test_default_directory_is_named_after_the_user(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(place.directory.parent))
    limiter = Limiter(storage_from_uri("local://", timeout=10))

    limiter.check(HITS)

    assert place.directory.with_name(f"flask-multilimit-{os.geteuid()}").joinpath("socket").is_socket()
    limiter.close()


def test_default_directory_is_named_after_the_user_that_serves_not_the_one_that_loads(
    monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    """With gunicorn --preload --user, root loads the app."""
    monkeypatch.setattr("tempfile.tempdir", str(place.directory.parent))
    storage = local.LocalStorage(timeout=10)
    limiter = Limiter(storage, layers=Layers())

    monkeypatch.setattr("os.geteuid", lambda: NOBODY)

    assert storage.directory.name == f"flask-multilimit-{NOBODY}"
    limiter.close()


# Errors when the limiter is made


@pytest.mark.parametrize(
    ("uri", "wrong"),
    [
        ("local://limits", "must be absolute, such as local:///"),
        ("local://localhost/limits", "must be absolute"),
        ("local:///tmp/limits?db=1", "takes no options"),
        ("local:///nowhere/limits", "the directory /nowhere does not exist: create it"),
        (f"local:///tmp/{'x' * 200}", "bytes too long for the path of a socket: name a shorter one"),
        ("local://:hunter2@/limits", "must be absolute"),
        *((f"local:///tmp/{name}", "must have a name in UTF-8 and without NUL") for name in ("x%00", "%ff", "\udcff")),
    ],
)
def test_invalid_uri_is_an_error_with_its_reason(uri: str, wrong: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        storage_from_uri(uri)
    assert wrong in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_directory_with_a_name_that_this_process_cannot_encode_is_an_error() -> None:
    """Without UTF-8 mode in the locale C, file names are ASCII."""
    program = "from flask_multilimit.engine import storage_from_uri; storage_from_uri('local:///tmp/%C3%BC')"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert r"ConfigurationError: storage URI 'local:///tmp/\xfc': the directory must have a name in UTF-8" in run.stderr


def test_longest_allowed_path_holds_a_socket(place: Place) -> None:
    room = local_server.LONGEST_SOCKET - len(os.fsencode(place.directory / "socket"))
    longest = Path(f"{place.directory}{'x' * room}")
    limiter = Limiter(storage_from_uri(f"local://{longest}", timeout=10))

    assert limiter.check(HITS).allowed
    limiter.close()
    with pytest.raises(ConfigurationError, match="is 1 bytes too long"):
        storage_from_uri(f"local://{longest}x")


def test_missing_extra_of_local_storage_is_an_error_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "PROGRAMS", {"flask_multilimit_has_no_such": "server"})
    with pytest.raises(ConfigurationError, match=r"pip install 'flask-multilimit\[local\]'"):
        storage_from_uri("local://")


def test_app_that_is_frozen_without_sources_names_the_file_to_include(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_server, "SUPERVISOR", tmp_path / "no_source.py")
    with pytest.raises(ConfigurationError, match=r"supervisor\.py is missing: include it in the app, or use redis://"):
        storage_from_uri(place.uri)


def test_missing_temporary_directory_is_an_error_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container whose file system is read-only."""
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/nowhere"])

    with pytest.raises(ConfigurationError, match=r"No usable temporary directory .*: name a directory, such as"):
        storage_from_uri("local://")


def test_missing_file_locks_are_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "HAS_LOCKS", False)
    with pytest.raises(ConfigurationError, match="no flock: use redis://"):
        storage_from_uri("local://")


def make_link(directory: Path) -> None:
    directory.with_name("elsewhere").mkdir(mode=0o700)
    directory.symlink_to(directory.with_name("elsewhere"))


def make_dangling_link(directory: Path) -> None:
    directory.symlink_to(directory.with_name("elsewhere"))


def make_open(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o750)


def make_read_only(directory: Path) -> None:
    directory.mkdir(mode=0o500)


UNSAFE = {
    make_link: "not a link to one",
    make_dangling_link: "not a link to one",
    Path.touch: "must be a directory",
    make_open: "its mode is 750, so other users have access to it",
    make_read_only: "its mode is 500, so its owner may not use it: ",
}


@pytest.mark.parametrize("make", UNSAFE)
def test_an_unsafe_directory_is_refused(place: Place, limiter: Limiter, make: Callable[[Path], None]) -> None:
    make(place.directory)

    with pytest.raises(StorageError, match=UNSAFE[make]):
        limiter.check(HITS)
    with pytest.raises(ConfigurationError, match=UNSAFE[make]):
        storage_from_uri(place.uri)

    if place.directory.is_dir():
        assert not list(place.directory.iterdir())


def test_a_directory_of_another_user_is_refused(place: Place) -> None:
    if os.geteuid():
        of_another_user = Path("/usr")
    else:
        of_another_user = place.directory
        of_another_user.mkdir(mode=0o700)
        os.chown(of_another_user, NOBODY, NOBODY)

    with pytest.raises(StorageError, match=rf"it belongs to user \d+, but this process runs as user {os.geteuid()}"):
        local_server.LocalServer(of_another_user).find()


def test_directory_that_takes_the_place_of_a_safe_one_before_it_is_opened_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = iter(["", "it is another one"])
    monkeypatch.setattr(local_server, "why_unusable", lambda *_: next(reasons))

    with pytest.raises(StorageError, match="it is another one"):
        local_server.open_directory(place.directory)

    place.directory.rmdir()


@pytest.mark.parametrize("name", ["election", "supervisor", "log"])
def test_symbolic_link_in_place_of_a_file_is_refused_and_not_followed(
    place: Place, limiter: Limiter, name: str
) -> None:
    place.directory.mkdir(mode=0o700)
    precious = place.directory.with_name("precious")
    precious.write_text("precious")
    place.directory.joinpath(name).symlink_to(precious)

    with pytest.raises(StorageError, match="symbolic link"):
        limiter.check(HITS)

    assert precious.read_text() == "precious"


# Errors at a check


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (errno.ENOSPC, r"No space left on device: .* or name another, such as local:///"),
        (errno.EMFILE, r"Too many open files: .*\(ulimit -n\)$"),
        (errno.EAGAIN, r"Resource temporarily unavailable: .*\(ulimit -u"),
    ],
    ids=["full disk", "too many open files", "too many processes"],
)
def test_error_of_the_system_has_its_remedy(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch, code: int, told: str
) -> None:
    monkeypatch.setattr(local_server.LocalServer, "_open", raising(OSError(code, os.strerror(code))))

    with pytest.raises(StorageError, match=told):
        limiter.check(HITS)


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("echo no room for me", "no room for me$"),
        ("", "nothing in its log$"),
        ("seq 10000 10200", r"10135\\n10136\\n.*10200$"),
        ("printf %500s | tr ' ' x", "x{400}$"),
    ],
    ids=["a line", "nothing", "many lines", "a long line"],
)
def test_error_says_why_the_server_does_not_start(
    limiter: Limiter, program: Callable[[str], None], printed: str, told: str
) -> None:
    program(f"{printed}\nexit 1")

    with pytest.raises(StorageError, match=rf"does not start: {told}"):
        limiter.check(HITS)


def test_error_says_why_the_program_of_the_server_cannot_run(
    place: Place, limiter: Limiter, program: Callable[[str], None]
) -> None:
    program("")
    place.directory.with_name("valkey-server").chmod(0o600)

    with pytest.raises(StorageError, match=r"does not start: .*/valkey-server: .*Permission denied"):
        limiter.check(HITS)


def test_error_says_why_python_does_not_start(place: Place, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    python = place.directory.with_name("python")
    python.write_text("#!/bin/sh\necho no room for me; exit 1\n")
    python.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(python))

    with pytest.raises(StorageError, match=r"does not start: no room for me$"):
        limiter.check(HITS)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ('ulimit -n 16; exec "$0.real" "$@"', "Your current 'ulimit -n' of 16 is not enough"),
        ("echo no room for me; exit 1", "no room for me"),
    ],
    ids=["log of the server", "one line"],
)
def test_error_of_a_failed_start_is_the_same_at_each_attempt(
    limiter: Limiter, program: Callable[[str], None], script: str, told: str
) -> None:
    """So that repeated attempts are logged once. The log of the server, which has its pid and the time, is cut down."""
    program(script)
    messages = set[str]()

    for _ in range(2):
        with pytest.raises(StorageError) as caught:
            limiter.check(HITS)
        messages.add(str(caught.value))

    (only,) = messages
    assert f"does not start: {told}" in only


def test_threads_share_one_failed_start(place: Place, limiter: Limiter, program: Callable[[str], None]) -> None:
    program(f"echo tried >>{place.directory.with_name('tries')}; sleep 1; exit 1")
    all_threads = threading.Barrier(8)

    def check(_: int) -> str:
        all_threads.wait()
        with pytest.raises(StorageError) as caught:
            limiter.check(HITS)
        return str(caught.value)

    with ThreadPoolExecutor(8) as pool:
        (message,) = set(pool.map(check, range(8)))

    assert "does not start" in message
    assert place.directory.with_name("tries").read_text() == "tried\n"


def test_guard_repeats_a_failed_start(place: Place, program: Callable[[str], None]) -> None:
    program('[ -e "$0.ready" ] || exit 1; exec "$0.real" "$@"')
    limiter = Limiter(GuardedStorage(storage_from_uri(place.uri, timeout=10), workers=1))
    assert limiter.check(MANY).decided_by == "local"

    place.directory.with_name("valkey-server.ready").touch()

    until(lambda: limiter.check(MANY).decided_by != "local")
    assert limiter.check(MANY).allowed
    limiter.close()


@pytest.mark.parametrize("prefix", [sys.prefix, "/nowhere"])
def test_server_starts_when_sys_executable_is_another_program(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.setattr("sys.executable", "/usr/bin/uwsgi")
    monkeypatch.setattr("sys.prefix", prefix)
    assert limiter.check(HITS).allowed


def test_server_starts_without_ctypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    supervisor.end_with_parent(os.getppid())


def test_missing_python_is_an_error_with_its_remedy(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/usr/bin/uwsgi")
    monkeypatch.setattr("sys.prefix", "/nowhere")
    monkeypatch.setattr("shutil.which", lambda _: None)

    with pytest.raises(StorageError, match="put python3 on the PATH"):
        limiter.check(HITS)


def test_server_that_is_no_longer_installed_is_an_error_with_its_remedy(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_server, "find_program", lambda: None)

    with pytest.raises(StorageError, match=r"no longer installed: pip install"):
        limiter.check(HITS)


def test_server_that_never_answers_is_an_error_and_ends(
    place: Place, limiter: Limiter, program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = local_server.LocalServer._wait_for_answer
    monkeypatch.setattr(local_server.LocalServer, "_wait_for_answer", lambda server, _: wait(server, time.monotonic()))
    program("exec sleep 600")

    with pytest.raises(StorageError, match="does not answer within 5 s"):
        limiter.check(HITS)

    limiter.close()
    until(place.is_deserted)


def test_python_that_never_ends_is_an_error(place: Place, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "START_SECONDS", 0.1)
    python = place.directory.with_name("python")
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(python))

    with pytest.raises(StorageError, match=f"local storage in {place.directory}: "):
        limiter.check(HITS)


def test_supervisor_that_outlives_its_server_for_too_long_is_an_error(
    place: Place, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_server, "START_SECONDS", 0.1)
    place.directory.mkdir(mode=0o700)
    with place.directory.joinpath("supervisor").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        with pytest.raises(StorageError, match="its server has ended, but its supervisor has not"):
            limiter.check(HITS)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a server whose queue is full refuses connections")
def test_server_that_is_too_busy_to_accept_connections_runs(place: Place) -> None:
    place.directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as busy, ExitStack() as waiting:
        busy.bind(str(place.socket))
        busy.listen(0)
        for _ in range(9):
            connection = waiting.enter_context(socket.socket(socket.AF_UNIX))
            connection.setblocking(False)
            with suppress(BlockingIOError):
                connection.connect(str(place.socket))

        assert local_server.LocalServer(place.directory).listens()
    place.socket.unlink()


def test_check_without_time_left_does_not_look_for_a_server(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it get its time again, as when it starts one."""
    limiter.check(HITS)
    RedisStorage.close(limiter.storage)  # type: ignore[arg-type]  # so that it connects again
    monkeypatch.setattr(TimedUnixConnection, "_connect", raising(TimeoutError("timed out")))
    monkeypatch.setattr(local_server.LocalServer, "find", raising(AssertionError("looked for a server")))

    with pytest.raises(StorageError, match="gave no answer"):
        limiter.check(HITS)
