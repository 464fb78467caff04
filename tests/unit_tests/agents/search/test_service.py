"""Search over HTTP: the same results, for those who have the key, whatever is sent."""

from __future__ import annotations

import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Barrier, Event, Thread

import pytest

from rlinf.agents.search import client as client_module
from rlinf.agents.search import service as service_module
from rlinf.agents.search.client import RemoteIndex
from rlinf.agents.search.documents import Document, SearchUnavailable
from rlinf.agents.search.service import SearchService
from rlinf.agents.search.text_index import TextIndex

DOCUMENTS = [Document(str(i), f"title {i}", f'text "{i}"\nof é') for i in range(20)]


@pytest.fixture(scope="module")
def index():
    return TextIndex.of(DOCUMENTS)


@pytest.fixture
def service(index):
    made = SearchService(index).start()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(client_module, "_PAUSE_SECONDS", 0.0)
    monkeypatch.delenv("RLINF_SEARCH_KEY", raising=False)


def post(service, body, path="/retrieve", headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, data, headers or {})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_a_client_finds_what_the_index_does(index, service):
    remote = RemoteIndex(service.url)
    for query in ("title 7", "text", "nothing of it", 'ti"tle \ud800', ""):
        assert remote.search(query, 4) == index.search(query, 4)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: remote.search(f"title {i % 20}", 1), range(64)))
    assert [hits[0].document for hits in found] == [DOCUMENTS[i % 20] for i in range(64)]


def test_the_shape_is_that_of_search_r1(service):
    asked = {"queries": ["title 3", "title 4"], "topk": 1, "return_scores": True}
    status, answer = post(service, asked)
    (first,), (second,) = answer["result"]
    assert status == 200 and first["document"]["contents"] == '"title 3"\ntext "3"\nof é'
    assert first["document"]["id"] == "3" and isinstance(second["score"], float)
    # Without scores the documents stand there themselves, three of them.
    _, answer = post(service, {"queries": ["title 3"]})
    assert [document["id"] for document in answer["result"][0]][0] == "3"
    assert len(answer["result"][0]) == 3
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    connection.request("GET", "/health")
    assert json.loads(connection.getresponse().read()) == {"status": "ok", "documents": 20}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "no JSON"),
        (b"[" * 100_000, 400, "no JSON"),
        ([], 400, "an object"),
        ({"queries": "a"}, 400, "a list of texts"),
        ({"queries": [1]}, 400, "a list of texts"),
        ({"queries": ["a"] * 2000}, 400, "at most 1024"),
        ({"queries": ["a"], "topk": 0}, 400, "from 1 to 100"),
        ({"queries": ["a"], "topk": True}, 400, "from 1 to 100"),
        ({"queries": ["a"], "topk": 10**9}, 400, "from 1 to 100"),
        (b"x" * (service_module.MOST_BYTES + 1), 413, "at most"),
    ],
)
def test_requests_that_cannot_be_answered_are_told_why(service, body, status, said):
    # One that is too large may be cut off while it is sent.
    try:
        found, answer = post(service, body)
        assert found == status and said in answer["detail"]
    except ConnectionError:
        assert status == 413
    assert post(service, {"queries": ["title 3"]})[0] == 200
    assert post(service, {}, path="/other")[0] == 404


def test_a_client_that_goes_away_is_no_matter(service):
    for sent in (
        b"POST /retrieve HTTP/1.1\r\nContent-Length: 50\r\n\r\n{",
        b"\x16\x03\x01garbage\r\n",
    ):
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(sent)
    assert post(service, {"queries": ["title 3"]})[0] == 200


def test_only_those_with_the_key_are_answered(index, monkeypatch):
    service = SearchService(index, key="a secret").start()
    try:
        assert post(service, {"queries": ["a"]})[0] == 401
        assert post(service, {"queries": ["a"]}, headers={"Authorization": "Bearer a"})[0] == 401
        with pytest.raises(SearchUnavailable, match="status 401"):
            RemoteIndex(service.url).search("title 3", 1)
        monkeypatch.setenv("RLINF_SEARCH_KEY", "a secret")
        assert len(RemoteIndex(service.url).search("title 3", 1)) == 1
    finally:
        service.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_other_hosts_need_a_key(index, host):
    with pytest.raises(ValueError, match="RLINF_SEARCH_KEY"):
        SearchService(index, host)


def test_a_whole_batch_of_episodes_asks_at_once(index, service):
    together = Barrier(200)

    def ask(i):
        together.wait()
        return RemoteIndex(service.url, timeout=60.0).search(f"title {i % 20}", 1)[0].document

    with ThreadPoolExecutor(200) as pool:
        assert list(pool.map(ask, range(200))) == [DOCUMENTS[i % 20] for i in range(200)]


def test_too_many_requests_are_refused_and_asked_again(index, monkeypatch):
    monkeypatch.setattr(service_module, "_PATIENCE_SECONDS", 0.01)
    service = SearchService(index).start()
    try:
        for _ in range(service_module._AT_ONCE):
            service._room.acquire()
        assert post(service, {"queries": ["a"]})[0] == 503
        with pytest.raises(SearchUnavailable, match="requests are under way"):
            RemoteIndex(service.url).search("title 3", 1)
        service._room.release()
        assert len(RemoteIndex(service.url).search("title 3", 1)) == 1
    finally:
        service.close()


def answering(*answers: tuple[int, bytes]):
    """Return a server that gives answers in turn, and the requests that it got."""
    left, got = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            status, data = left.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server, got


FOUND = json.dumps({"result": [[{"id": "1", "contents": '"Oslo"\na city'}]]}).encode()


def test_a_service_that_stumbles_is_asked_again():
    server, got = answering((500, b"a moment"), (200, b"{"), (200, FOUND))
    try:
        url = f"http://127.0.0.1:{server.server_port}/retrieve"
        (hit,) = RemoteIndex(url).search("a city", 3)
        assert hit.document == Document("1", "Oslo", "a city") and len(got) == 3
        assert json.loads(got[0]) == {"queries": ["a city"], "topk": 3, "return_scores": True}
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "lie", [b"[]", b'{"result": []}', b'{"result": [[{"titel": 1}]]}', b'{"result": [3]}', b"no"]
)
def test_a_service_that_lies_is_named(lie):
    server, got = answering(*[(200, lie)] * 3)
    try:
        with pytest.raises(SearchUnavailable, match="does not answer as it should"):
            RemoteIndex(f"http://127.0.0.1:{server.server_port}/").search("a", 1)
        assert len(got) == 3
    finally:
        server.shutdown()
        server.server_close()


HEAD = b"HTTP/1.0 200 OK\r\nX-"
WHOLE_HEAD = b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\n"


@pytest.fixture
def stalling():
    """Return a function that starts a server which sends something and never ends its answer."""
    over, servers = Event(), []

    def start(sent: bytes, drips: bytes = b"", pause: float = 0.0):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked.append(self.path)
                over.wait(pause)
                self.wfile.write(sent)
                while drips and not over.wait(0.02):
                    self.wfile.write(drips)
                over.wait()

            def log_message(self, *args) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *args: None  # The client has gone.
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/retrieve", asked

    yield start
    over.set()
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("sent", "drips"),
    [(b"", b""), (HEAD, b"a"), (WHOLE_HEAD, b""), (WHOLE_HEAD, b" "), (WHOLE_HEAD + b"{", b"")],
)
def test_attempts_together_stay_within_the_deadline(monkeypatch, stalling, sent, drips):
    """A service that hangs, or sends a byte now and then, costs the time of one search."""
    monkeypatch.setattr(client_module, "_PAUSE_SECONDS", 0.05)
    url, asked = stalling(sent, drips)
    begin = time.monotonic()
    with pytest.raises(SearchUnavailable, match="does not answer as it should"):
        RemoteIndex(url, timeout=0.5).search("a", 1)
    assert time.monotonic() - begin < 5.0, "the answers that drip take 20 seconds and more"
    assert len(asked) == 1, "its time is over after the first attempt"


@pytest.mark.parametrize(
    "sent", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n"]
)
def test_a_service_that_does_not_speak_http_is_named(stalling, sent):
    url, asked = stalling(sent)
    with pytest.raises(SearchUnavailable, match="does not answer as it should"):
        RemoteIndex(url).search("a", 1)
    assert len(asked) == 3


def test_what_came_late_does_not_begin_the_time_anew(stalling):
    """An answer that stops in its body costs the timeout, not that and the time before."""
    url, _ = stalling(WHOLE_HEAD + b"{", pause=1.0)
    begin = time.monotonic()
    with pytest.raises(SearchUnavailable, match="does not answer as it should"):
        RemoteIndex(url, timeout=1.2).search("a", 1)
    assert time.monotonic() - begin < 2.0


def test_a_service_that_is_not_there_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(SearchUnavailable, match=f"127.0.0.1:{port}"):
        RemoteIndex(f"http://127.0.0.1:{port}/retrieve").search("a", 1)
    for url in ("127.0.0.1:8000", "file:///etc/passwd", "http://"):
        with pytest.raises(ValueError, match="is no address"):
            RemoteIndex(url)
