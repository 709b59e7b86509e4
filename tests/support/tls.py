"""A server with TLS, and certificates for it. If the binary is built without TLS, a proxy speaks TLS."""

import contextlib
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import trustme

from support.servers import PORT_TRIES, PORTS, Binary, Server, ServerError


class Certificates:
    """Files in ``folder``: a CA, and its certificates for ``localhost`` and for a client."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(self.ca)
        self.server, self.server_key = self.write("server", self.authority.issue_cert("localhost"))
        self.client, self.client_key = self.write("client", self.authority.issue_cert("limiter@example.com"))

    def write(self, name: str, issued: trustme.LeafCert) -> tuple[Path, Path]:
        """Write a certificate and its key; returns their paths."""
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(certificate)
        issued.private_key_pem.write_to_path(key)
        return certificate, key

    def query(self, *, client: bool = True) -> str:
        """The query of a URI that names the certificates."""
        own = f"&ssl_certfile={self.client}&ssl_keyfile={self.client_key}" if client else ""
        return f"ssl_ca_certs={self.ca}{own}"


@contextlib.contextmanager
def tls_server(binary: Binary, certificates: Certificates) -> Iterator[tuple[Server, int]]:
    """A server, and its port for TLS with clients that have a certificate of the CA."""
    port = free_port()
    paths = {"cert": certificates.server, "key": certificates.server_key, "ca-cert": certificates.ca}
    files = [argument for name, path in paths.items() for argument in (f"--tls-{name}-file", path)]
    with contextlib.ExitStack() as stack:
        try:
            options = [*map(str, files), "--tls-port", str(port)]
            server = stack.enter_context(Server(binary, tcp=True, options=options))
        except ServerError:  # built without TLS
            server = stack.enter_context(Server(binary, tcp=True))
            stack.enter_context(tls_proxy(port, server.url.removeprefix("unix://"), certificates))
        yield server, port


@contextlib.contextmanager
def tls_proxy(port: int, target: str, certificates: Certificates) -> Iterator[None]:
    """A port that passes TLS on to the unix socket ``target``, for clients with a certificate of the CA."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)
    context.load_verify_locations(certificates.ca)
    context.verify_mode = ssl.CERT_REQUIRED

    def serve(client: socket.socket) -> None:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            end = stack.enter_context(context.wrap_socket(client, server_side=True))
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.connect(target)
            back = threading.Thread(target=_pump, args=(server, end), daemon=True)
            back.start()
            _pump(end, server)
            back.join()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()

    with socket.create_server(("127.0.0.1", port)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


def free_port() -> int:
    """One of those that the system does not take for outgoing connections: it stays free until something listens."""
    for port in random.sample(PORTS, PORT_TRIES):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise ServerError("no port is free")
