"""TLS to servers, sentinels and clusters, with right and wrong certificates on both sides."""

import contextlib
import datetime
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
import trustme
from redis.crc import key_slot

from flask_multilimit.engine import ConfigurationError, Limiter, StorageError, storage_from_uri
from flask_multilimit.engine.storage.redis.connections import Deadline
from flask_multilimit.engine.storage.redis.failures import NOBODY_THERE
from flask_multilimit.engine.storage.redis.sentinel import Primary
from support.bench import bare, hits
from support.cluster import Cluster
from support.sentinel import SERVICE, SentinelServer
from support.servers import Binary, Server
from support.tls import Certificates, free_port, tls_proxy, tls_server
from support.waiting import SECONDS


@pytest.fixture(scope="module")
def port(any_shared_server: Server, certificates: Certificates) -> Iterator[int]:
    with tls_server(any_shared_server.binary, certificates) as (_, port):
        yield port


@contextlib.contextmanager
def limiter_at(uri: str, *, timeout: float = 10) -> Iterator[Limiter]:
    limiter = Limiter(storage_from_uri(uri, timeout=timeout))
    yield limiter
    limiter.close()


def error_of(uri: str, *, timeout: float = 10) -> StorageError:
    with limiter_at(uri, timeout=timeout) as limiter, pytest.raises(StorageError) as caught:
        limiter.check(hits())
    return caught.value


def test_every_operation_works_over_tls(port: int, certificates: Certificates) -> None:
    with limiter_at(f"rediss://localhost:{port}/0?{certificates.query()}") as limiter:
        decision = limiter.check(hits())
        assert [each.remaining for each in limiter.check_many([hits()] * 2)] == [3, 2]
        limiter.refund(decision)
        assert limiter.peek(hits()).remaining == 3
        limiter.reset(hits())
        assert limiter.check(hits()).remaining == 4


def test_sentinels_and_the_server_they_announce_work_over_tls(
    port: int, server: Server, certificates: Certificates
) -> None:
    """The address that they announce must be in the certificate if it is verified."""
    in_tls = free_port()
    with contextlib.ExitStack() as stack:
        sentinel = stack.enter_context(SentinelServer(server.binary, port, quorum=2))
        stack.enter_context(tls_proxy(in_tls, sentinel.url.removeprefix("unix://"), certificates))
        uri = f"rediss+sentinel://localhost:{in_tls}/{SERVICE}?{certificates.query()}"
        assert "be for the host" in error_of(uri).remedy
        with limiter_at(f"{uri}&ssl_check_hostname=false") as limiter:
            assert limiter.check(hits("5/minute", scope="announced")).allowed


@pytest.mark.slow
def test_cluster_and_its_redirections_work_over_tls(binary: Binary, certificates: Certificates) -> None:
    """With the host and the port that its servers announce, also in redirections."""
    ports = [free_port() for _ in range(3)]
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(binary, announced=[("localhost", port) for port in ports]))
        for port, server in zip(ports, cluster.servers, strict=True):
            stack.enter_context(tls_proxy(port, server.url.removeprefix("unix://"), certificates))
        limiter = stack.enter_context(limiter_at(f"rediss+cluster://localhost:{ports[0]}?{certificates.query()}"))
        plan = tuple(hit for scope in ("application", "api.update", "shop") for hit in hits("9/minute", scope=scope))
        source = cluster.owner(plan[0].key)
        target, slot = cluster.another(source), key_slot(plan[0].key.encode())

        before = limiter.check(plan)
        assert {cluster.owner(hit.key) for hit in plan} == set(cluster.servers)
        cluster.begin_move(slot, source, target)
        cluster.move_key(plan[0].key, source, target)
        during = limiter.check(plan)
        cluster.end_move(slot, source, target)
        after = limiter.check(plan)

        assert [each.remaining for each in (before, during, after)] == [8, 7, 6]
        limiter.refund(during)
        assert limiter.peek(plan).remaining == 7
        stranger = f"rediss+cluster://localhost:{ports[0]}?{certificates.query(client=False)}"
        assert "ssl_certfile and ssl_keyfile" in error_of(stranger).remedy


def test_tls_connection_is_kept_after_the_first_check(port: int, certificates: Certificates) -> None:
    """A server of TLS 1.3 sends data by itself after the handshake. That is no reason to drop the connection."""
    with limiter_at(f"rediss://localhost:{port}/0?{certificates.query()}&client_name=kept") as limiter:
        for _ in range(3):
            limiter.check(hits())
            clients = limiter.storage.client.client_list()  # type: ignore[attr-defined]
            kept = {client["id"] for client in clients if client["name"] == "kept"}
        assert len(kept) == 2  # that of the checks, and that of CLIENT LIST


def test_remedy_names_the_client_certificate_when_the_server_rejects_it(
    port: int, certificates: Certificates, tmp_path: Path
) -> None:
    stranger = Certificates(tmp_path)
    for own in ("", f"&ssl_certfile={stranger.client}&ssl_keyfile={stranger.client_key}"):
        error = error_of(f"rediss://localhost:{port}/0?ssl_ca_certs={certificates.ca}{own}")
        assert "ssl_certfile and ssl_keyfile" in error.remedy


def test_remedy_is_to_start_the_server_when_it_has_stopped(any_server: Server, certificates: Certificates) -> None:
    with contextlib.ExitStack() as stack:
        _, port = stack.enter_context(tls_server(any_server.binary, certificates))
        limiter = Limiter(storage_from_uri(f"rediss://localhost:{port}/0?{certificates.query()}", timeout=10))
        limiter.check(hits())

    for _ in range(2):
        with pytest.raises(StorageError) as caught:
            limiter.check(hits())

    assert caught.value.remedy == NOBODY_THERE
    limiter.close()


def test_remedy_is_to_start_the_server_behind_a_tls_proxy_if_it_has_stopped(
    certificates: Certificates, tmp_path: Path
) -> None:
    in_tls = free_port()
    with tls_proxy(in_tls, str(tmp_path / "nobody"), certificates):
        error = error_of(f"rediss://localhost:{in_tls}/0?{certificates.query()}")
    assert "start the server behind it" in error.remedy


def test_a_certificate_of_an_unknown_authority_is_refused(
    port: int, certificates: Certificates, tmp_path: Path
) -> None:
    stranger = Certificates(tmp_path)
    own = f"ssl_certfile={certificates.client}&ssl_keyfile={certificates.client_key}"

    for query in (own, f"ssl_ca_certs={stranger.ca}&{own}"):
        error = error_of(f"rediss://localhost:{port}/0?{query}")
        assert "CERTIFICATE_VERIFY_FAILED" in str(error)
        assert "ssl_ca_certs" in error.remedy


def test_a_certificate_for_another_host_is_refused_unless_the_uri_allows_it(
    port: int, certificates: Certificates
) -> None:
    uri = f"rediss://127.0.0.1:{port}/0?{certificates.query()}"
    assert "be for the host in the URI" in error_of(uri).remedy
    with limiter_at(f"{uri}&ssl_check_hostname=false") as limiter:
        assert limiter.peek(hits()).allowed


def test_any_certificate_is_accepted_without_verification(
    port: int, certificates: Certificates, tmp_path: Path
) -> None:
    own = f"ssl_certfile={certificates.client}&ssl_keyfile={certificates.client_key}"
    query = f"ssl_ca_certs={Certificates(tmp_path).ca}&{own}&ssl_cert_reqs=none"
    with limiter_at(f"rediss://127.0.0.1:{port}/0?{query}") as limiter:
        assert limiter.peek(hits()).allowed


def test_a_certificate_that_has_expired_is_refused(any_server: Server, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    yesterday = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
    expired = certificates.authority.issue_cert("localhost", not_after=yesterday)
    certificates.server, certificates.server_key = certificates.write("expired", expired)

    with tls_server(any_server.binary, certificates) as (_, port):
        assert "not have expired" in error_of(f"rediss://localhost:{port}/0?{certificates.query()}").remedy


# A handshake that never ends


HEADER = b"\x16\x03\x03\x40\x00"
"""Of a record of the handshake, 16 KiB long."""


@contextlib.contextmanager
def endless_handshake(header: bytes, byte: bytes) -> Iterator[int]:
    """A port where the server sends a header, and then again and again a byte, until the client ends it."""
    done = threading.Event()

    def is_ended_by_client() -> bool:
        end, _ = listener.accept()
        with end, contextlib.suppress(OSError):
            end.sendall(header)
            for _ in range(400):
                end.sendall(byte)
                if done.wait(0.05):
                    return True
            return False
        return True

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        listener.settimeout(SECONDS)
        served = pool.submit(is_ended_by_client)
        yield listener.getsockname()[1]
        done.set()
        assert served.result()


@pytest.mark.parametrize(("header", "byte"), [(b"", b""), (HEADER, b"\0")], ids=["nothing", "byte by byte"])
def test_handshake_that_never_ends_times_out(header: bytes, byte: bytes) -> None:
    with endless_handshake(header, byte) as port:
        assert isinstance(error_of(f"rediss://127.0.0.1:{port}", timeout=0.2).__cause__, redis.TimeoutError)


def test_handshake_has_only_the_time_that_the_sentinels_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with endless_handshake(b"", b"") as port:

        def address(_: Primary, deadline: Deadline) -> tuple[str, int]:
            deadline.started -= 59.5
            return "127.0.0.1", port

        monkeypatch.setattr(Primary, "address", address)
        error_of(f"rediss+sentinel://localhost/{SERVICE}", timeout=60)


# Certificates that cannot be used


def test_unusable_certificate_file_is_an_error_at_once(certificates: Certificates, tmp_path: Path) -> None:
    rubbish, other = tmp_path / "rubbish.pem", Certificates(tmp_path)
    rubbish.write_text("rubbish")
    for query, message in (
        ("ssl_ca_certs=/nowhere/ca.pem", "ssl_ca_certs, ssl_ca_path: '/nowhere/ca.pem' cannot be used: No such file"),
        (f"ssl_ca_certs={rubbish}", "rubbish.pem' cannot be used"),
        ("ssl_certfile=/nowhere/me.pem&ssl_keyfile=/nowhere/me.key", "ssl_certfile, ssl_keyfile: '/nowhere/me.pem'"),
        (f"ssl_certfile={certificates.client}", "client.pem' cannot be used"),
        (f"ssl_certfile={certificates.client}&ssl_keyfile={other.client_key}", "KEY_VALUES_MISMATCH"),
        (f"ssl_keyfile={certificates.client_key}", "client.key' cannot be used"),
        ("ssl_cert_reqs=perhaps", "perhaps"),
    ):
        for uri in (f"rediss://localhost?{query}", f"rediss+sentinel://localhost/{SERVICE}?{query}"):
            with pytest.raises(ConfigurationError) as caught:
                storage_from_uri(uri)
            assert message in str(caught.value)


def test_replaced_certificate_is_used_by_the_next_connection(
    port: int, certificates: Certificates, tmp_path: Path
) -> None:
    changing = Certificates(tmp_path)
    uri = f"rediss://localhost:{port}/0?ssl_ca_certs={certificates.ca}&{changing.query().partition('&')[2]}"
    with limiter_at(uri) as limiter:
        with pytest.raises(StorageError):
            limiter.check(hits())
        changing.write("client", certificates.authority.issue_cert("limiter@example.com"))

        assert limiter.check(hits()).allowed


def test_connections_of_two_limiters_share_one_tls_context(certificates: Certificates) -> None:
    """Loading the CAs of a machine takes as long as a whole check may take."""
    pools = [
        limiter.storage.client.connection_pool  # type: ignore[attr-defined]
        for limiter in (bare(f"rediss://localhost/{n}?{certificates.query()}") for n in (0, 1))
    ]

    contexts = [pool.connection_class(**pool.connection_kwargs).context() for pool in pools]

    assert contexts[0] is contexts[1]


@pytest.mark.parametrize("replaced", ["ca", "client", "client_key"])
def test_replaced_file_gives_a_new_tls_context(tmp_path: Path, replaced: str) -> None:
    certificates = Certificates(tmp_path)
    pool = bare(f"rediss://localhost/0?{certificates.query()}").storage.client.connection_pool  # type: ignore[attr-defined]
    connection = pool.connection_class(**pool.connection_kwargs)
    before = connection.context()

    os.utime(getattr(certificates, replaced), (1, 1))

    assert connection.context() is not before


def test_tls_version_and_ciphers_of_the_uri_are_used() -> None:
    pytest.importorskip("redis", minversion="5.1")
    options = "ssl_min_version=772&ssl_ciphers=ECDHE-RSA-AES256-GCM-SHA384"
    pool = bare(f"rediss://localhost/0?{options}").storage.client.connection_pool  # type: ignore[attr-defined]

    context = pool.connection_class(**pool.connection_kwargs).context()

    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert [each["name"] for each in context.get_ciphers() if "TLS_" not in each["name"]] == [
        "ECDHE-RSA-AES256-GCM-SHA384"
    ]


def test_connection_keeps_the_whole_timeout_after_the_handshake(port: int, certificates: Certificates) -> None:
    with limiter_at(f"rediss://localhost:{port}/0?{certificates.query()}") as limiter:
        limiter.check(hits())
        (connection,) = limiter.storage.client.connection_pool._in_use_connections  # type: ignore[attr-defined]
        assert connection._sock.gettimeout() == 10


def test_encrypted_key_is_an_error_and_asks_for_no_password(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificates.client_key.write_text(_encrypted(certificates.authority.issue_cert("me@example.com")))
    with pytest.raises(ConfigurationError, match=r"client\.key' cannot be used"):
        storage_from_uri(f"rediss://localhost?{certificates.query()}")


def test_encrypted_key_is_read_with_the_password_of_the_uri(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    issued = certificates.authority.issue_cert("me@example.com")
    certificates.write("client", issued)
    certificates.client_key.write_text(_encrypted(issued))

    storage_from_uri(f"rediss://localhost?{certificates.query()}&ssl_password=hunter2").close()


def _encrypted(issued: trustme.LeafCert) -> str:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"hunter2"),
    ).decode()
