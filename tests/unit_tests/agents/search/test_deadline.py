"""The timeout of a search, and its key, do not go beyond the address that was given."""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import ssl
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rlinf.agents.search.client import RemoteIndex
from rlinf.agents.search.documents import Document, SearchUnavailable

FOUND = json.dumps({"result": [[{"id": "1", "contents": '"Oslo"\na city'}]]}).encode()


@pytest.fixture
def start():
    """Return a function that starts a server with one answer for all, and its requests' paths."""
    servers = []

    def begin(status: int, data: bytes, headers=(), tls: ssl.SSLContext | None = None):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.answer()

            def do_GET(self) -> None:
                self.answer()

            def answer(self) -> None:
                asked.append(self.path)
                self.send_response(status)
                for name, value in (*headers, ("Content-Length", str(len(data)))):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
        return server.server_port, asked

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Return the context of a server for 127.0.0.1 whose certificate this process trusts."""
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "search")])
    now = datetime.datetime.now(datetime.timezone.utc)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, None)
    )
    pem = serialization.Encoding.PEM
    private = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = tmp_path / "certificate.pem"
    file.write_bytes(certificate.public_bytes(pem) + key.private_bytes(pem, *private))
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(start, status):
    port, followed = start(200, FOUND)
    elsewhere = f"http://127.0.0.1:{port}/elsewhere"
    port, asked = start(status, b"", [("Location", elsewhere)])
    with pytest.raises(SearchUnavailable, match=f"redirects to {elsewhere}.*give the address"):
        RemoteIndex(f"http://127.0.0.1:{port}/retrieve", key="a secret").search("a", 1)
    assert asked == ["/retrieve"] and not followed


def test_the_certificates_are_loaded_once(start, tls, monkeypatch):
    loads = []
    load = ssl.SSLContext.load_default_certs

    def count(self, *args):
        loads.append(self)
        load(self, *args)

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", count)
    port, asked = start(200, FOUND, tls=tls)
    remote = RemoteIndex(f"https://127.0.0.1:{port}/retrieve")
    for _ in range(3):
        (hit,) = remote.search("a city", 1)
        assert hit.document == Document("1", "Oslo", "a city")
    assert len(asked) == 3 and len(loads) == 1


def test_a_certificate_that_is_not_trusted_is_refused(start, tls, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    port, asked = start(200, FOUND, tls=tls)
    with pytest.raises(SearchUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        RemoteIndex(f"https://127.0.0.1:{port}/retrieve").search("a city", 1)
    assert not asked


def seconds_of_search(url: str, timeout: float) -> float:
    remote = RemoteIndex(url, timeout=timeout)
    begin = time.monotonic()
    with pytest.raises(SearchUnavailable, match="does not answer as it should"):
        remote.search("a", 1)
    return time.monotonic() - begin


def test_all_addresses_of_a_host_share_the_time(monkeypatch):
    """Of ten addresses that do not answer, each would cost the whole timeout."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        for waiting in (first, second):
            # There is no room for more: the next connection is not answered.
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        found = socket.getaddrinfo("127.0.0.1", port, type=socket.SOCK_STREAM) * 10
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **settings: found)
        assert 0.4 < seconds_of_search(f"http://127.0.0.1:{port}/", timeout=0.5) < 3.0


def test_the_handshake_has_what_connecting_has_left(monkeypatch):
    resolve = socket.getaddrinfo

    def resolve_slowly(*args, **settings):
        time.sleep(1.0)
        return resolve(*args, **settings)

    # It accepts, and never says a word.
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"https://127.0.0.1:{mute.getsockname()[1]}/"
        monkeypatch.setattr(socket, "getaddrinfo", resolve_slowly)
        assert seconds_of_search(url, timeout=1.2) < 2.0


def test_an_address_that_refuses_is_followed_by_the_next(start, monkeypatch):
    port, _ = start(200, FOUND)
    resolve = socket.getaddrinfo
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        refusing = resolve(*free.getsockname(), type=socket.SOCK_STREAM)
    found = refusing + resolve("127.0.0.1", port, type=socket.SOCK_STREAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **settings: found)
    assert len(RemoteIndex(f"http://127.0.0.1:{port}/").search("a", 1)) == 1
