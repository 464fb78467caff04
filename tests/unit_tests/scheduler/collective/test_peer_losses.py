"""Connections that break between two living processes: both are told, and nothing is skipped."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import socket
import threading

import pytest

from rlinf.scheduler import ChannelError, ConnectionBroken, WorkerDied
from rlinf.scheduler.collective.peer_losses import PeerLoss, PeerLosses
from rlinf.scheduler.net.sockets import connect
from tests.unit_tests.scheduler.small_run import Wire, in_thread, stalled
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until

MESSAGE = 40_000


@pytest.fixture(params=["fin", "rst"])
def wire(request):
    wire = Wire(reset=request.param == "rst")
    yield wire
    wire.close()


@pytest.fixture
def far(two_nodes, wire):
    """Two members on two nodes; what the first sends to the second goes over the wire."""
    return two_nodes.join("here:0"), two_nodes.join("there:0", node_rank=1, wire=wire)


def send_all(member, peer):
    """Sends numbered messages until that fails; how many went well, and the error."""
    for number in itertools.count():
        try:
            member.mailbox.send(peer, (number, bytes(MESSAGE))).wait(PROMPTLY)
        except ConnectionBroken as error:
            return number, error


def receive_all(member, peer):
    """Receives until that fails; the numbers that came, and the error."""
    numbers = []
    while True:
        try:
            numbers.append(member.mailbox.recv(peer).wait(PROMPTLY)[0])
        except ConnectionBroken as error:
            return numbers, error


def waiting_messages(member, peer):
    queue = member.mailbox._queues.get((peer, ""))
    return len(queue.messages) if queue else 0


def check_named(error, here, there):
    """An error says which connection broke, and that both processes live."""
    assert error.confirmed and {error.here, error.peer} == {here, there}
    assert all(word in str(error) for word in (here, there, "broke", "lost"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def check_nothing_passes(one, other):
    for member, peer in ((one, other), (other, one)):
        with pytest.raises(ConnectionBroken):
            member.mailbox.send(peer.name, "more").wait(PROMPTLY)
        with pytest.raises(ConnectionBroken):
            member.mailbox.recv(peer.name).wait(PROMPTLY)


@pytest.mark.parametrize("node_rank", [0, 1], ids=["within a node", "between nodes"])
def test_a_message_may_have_any_number_of_tensors(two_nodes, node_rank):
    torch = pytest.importorskip("torch")
    here, there = two_nodes.join("here:0"), two_nodes.join("there:0", node_rank=node_rank)
    # Just large enough not to travel inside the header.
    tensors = list(torch.arange(20_000 * 1024, dtype=torch.float32).view(20_000, 1024))
    work = here.mailbox.send("there:0", tensors)
    after = here.mailbox.send("there:0", "next")
    came = in_thread(lambda: there.mailbox.recv("here:0").wait(PROMPTLY)).wait()
    assert there.mailbox.recv("here:0").wait(PROMPTLY) == "next"
    assert len(came) == 20_000 and torch.equal(torch.stack(came), torch.stack(tensors))
    work.wait(PROMPTLY), after.wait(PROMPTLY)


@pytest.mark.parametrize("place", [10, 100, MESSAGE // 2, 5 * MESSAGE, 20 * MESSAGE + 17])
def test_a_break_while_messages_are_on_the_way(far, wire, place):
    here, there = far
    here.mailbox.send("there:0", (-1, b"")).wait()
    assert there.mailbox.recv("here:0").wait(PROMPTLY)[0] == -1
    wire.cut_after(place)
    receiving = in_thread(receive_all, there, "here:0")
    sent, told = in_thread(send_all, here, "there:0").wait()
    numbers, error = receiving.wait()
    assert numbers == list(range(len(numbers))) and len(numbers) <= sent
    check_named(told, "here:0", "there:0")
    check_named(error, "here:0", "there:0")
    check_nothing_passes(here, there)


def test_a_break_while_nobody_sends(far, wire):
    here, there = far
    here.mailbox.send("there:0", "first").wait()
    assert there.mailbox.recv("here:0").wait(PROMPTLY) == "first"
    waiting = there.mailbox.recv("here:0")
    wire.cut()
    with pytest.raises(ConnectionBroken) as caught:
        in_thread(waiting.wait).wait()
    check_named(caught.value, "here:0", "there:0")
    check_nothing_passes(here, there)


def test_a_break_while_a_message_is_half_sent(far, wire):
    here, there = far
    here.mailbox.send("there:0", "first").wait()
    assert there.mailbox.recv("here:0").wait(PROMPTLY) == "first"
    with stalled(there):
        before = wire.passed
        work = here.mailbox.send("there:0", bytes(50_000_000))
        wait_until(lambda: wire.passed > before + 100_000)
        assert not work.done(), "nobody has read it"
        wire.cut()
    with pytest.raises(ConnectionBroken) as caught:
        in_thread(work.wait).wait()
    check_named(caught.value, "here:0", "there:0")
    check_nothing_passes(here, there)


def test_what_arrived_before_a_break_is_received_before_the_error(far, wire):
    here, there = far
    for number in range(3):
        here.mailbox.send("there:0", (number,)).wait()
    wait_until(lambda: waiting_messages(there, "here:0") == 3)
    wire.cut()
    wait_until(lambda: there.endpoint.gone("here:0"))
    numbers, error = receive_all(there, "here:0")
    assert numbers == [0, 1, 2]
    check_named(error, "here:0", "there:0")


def test_who_sees_nothing_of_a_break_is_told(far, wire):
    here, there = far
    here.mailbox.send("there:0", "first").wait()
    assert there.mailbox.recv("here:0").wait(PROMPTLY) == "first"
    waiting = there.mailbox.recv("here:0")
    wire.cut("source")
    with pytest.raises(ConnectionBroken) as caught:
        in_thread(waiting.wait).wait()
    check_named(caught.value, "here:0", "there:0")


@pytest.mark.parametrize("wire", ["fin"], indirect=True)
def test_a_connection_that_leaves_messages_out_is_found_by_their_numbers(far, wire, monkeypatch):
    here, there = far
    here.mailbox.send("there:0", "first").wait()
    assert there.mailbox.recv("here:0").wait(PROMPTLY) == "first"
    wire.swallow()
    before = wire.passed
    here.mailbox.send("there:0", "second").wait()
    wait_until(lambda: wire.passed > before)
    # As if neither had noticed that the connection is another one.
    monkeypatch.setattr(PeerLosses, "doubt", lambda *_: None)
    wire.cut()
    wait_until(lambda: not here.endpoint.connections._out)
    with contextlib.suppress(ConnectionBroken):
        # The sender may be told before this has left, or after.
        in_thread(lambda: here.mailbox.send("there:0", "third").wait()).wait()
    with pytest.raises(ConnectionBroken, match="message 3 .* message 2") as caught:
        there.mailbox.recv("here:0").wait(PROMPTLY)
    check_named(caught.value, "here:0", "there:0")
    with pytest.raises(ConnectionBroken):
        wait_until(lambda: here.endpoint.gone("there:0"))
        here.mailbox.send("there:0", "fourth").wait()


@pytest.mark.parametrize("wire", ["rst"], indirect=True)
def test_a_process_that_is_started_anew_can_be_reached_again(two_nodes, wire):
    here = two_nodes.join("here:0")
    there = two_nodes.join("there:0", node_rank=1, wire=wire)
    here.mailbox.send("there:0", "first").wait()
    wire.cut()
    wait_until(lambda: here.endpoint.gone("there:0") and there.endpoint.gone("here:0"))
    two_nodes.kill(there)
    with pytest.raises(WorkerDied, match="there:0"):
        here.mailbox.recv("there:0").wait(PROMPTLY)
    there = two_nodes.join("there:0", node_rank=1, wire=wire)
    here.mailbox.send("there:0", "hello").wait()
    assert there.mailbox.recv("here:0").wait(PROMPTLY) == "hello"
    there.mailbox.send("here:0", "hello").wait()
    assert here.mailbox.recv("there:0").wait(PROMPTLY) == "hello"


@pytest.mark.parametrize("wire", ["rst"], indirect=True)
def test_shared_memory_that_a_living_reader_holds_is_not_used_again(small_run, wire):
    np = pytest.importorskip("numpy")
    here, there = small_run.join("here:0"), small_run.join("there:0")
    here.mailbox.send("there:0", np.full(100_000, 1.0)).wait()
    held = there.mailbox.recv("here:0").wait(PROMPTLY)
    here.endpoint.connections._out["there:0"].sock.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: here.endpoint.gone("there:0"))
    other = small_run.join("other:0")
    for _ in range(3):
        here.mailbox.send("other:0", np.zeros(100_000)).wait()
        other.mailbox.recv("here:0").wait(PROMPTLY)
    assert (held == 1.0).all()


def test_shared_memory_of_a_message_that_was_sent_just_before_a_break_is_kept(
    small_run, monkeypatch
):
    np = pytest.importorskip("numpy")
    here, there = small_run.join("here:0"), small_run.join("there:0")
    answer = here.endpoint.answer

    def answer_and_then_it_breaks(connection, *args):
        answer(connection, *args)
        wait_until(lambda: waiting_messages(there, "here:0"))
        here.endpoint._break("there:0", connection.identity["life"], "cut", confirmed=True)

    monkeypatch.setattr(here.endpoint, "answer", answer_and_then_it_breaks)
    here.mailbox.send("there:0", np.full(100_000, 1.0))
    monkeypatch.undo()
    held = there.mailbox.recv("here:0").wait(PROMPTLY)
    other = small_run.join("other:0")
    here.mailbox.send("other:0", np.zeros(100_000)).wait()
    other.mailbox.recv("here:0").wait(PROMPTLY)
    assert (held == 1.0).all()


def test_a_connection_to_the_keeper_of_a_channel(small_run):
    small_run.keeper()
    member, other = small_run.join("member:0"), small_run.join("other:0")
    channel, theirs = small_run.channel(member, "c"), small_run.channel(other, "c")
    waiting = channel.get(async_op=True)
    member.endpoint.connections._out["keeper:0"].sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ChannelError, match="connection between member:0 and keeper:0 broke"):
        in_thread(waiting.wait).wait()
    with pytest.raises(ConnectionBroken):
        channel.put("item")
    theirs.put("for others")
    assert theirs.get() == "for others"


def test_a_broadcast_that_cannot_be_handed_on_fails_at_its_source(two_nodes):
    root = two_nodes.join("root:0")
    first, second = (two_nodes.join(name, node_rank=1) for name in ("first:0", "second:0"))
    groups = [(name, [0]) for name in ("root", "first", "second")]

    def broadcast(obj):
        taking = [m.broadcaster.broadcast(None, groups, ("root", 0)) for m in (first, second)]
        return root.broadcaster.broadcast(obj, groups, ("root", 0)), taking

    sending, taking = broadcast("first")
    # The second one has it from the first, which is on its node.
    assert [in_thread(work.wait).wait() for work in taking] == ["first"] * 2
    assert in_thread(sending.wait).wait() == "first"
    first.endpoint.connections._out["second:0"].sock.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: first.endpoint.gone("second:0"))
    sending, _ = broadcast("second")
    with pytest.raises(ConnectionBroken, match="between first:0 and second:0"):
        in_thread(sending.wait).wait()


@pytest.mark.parametrize("admitted", ["before", "after"])
def test_a_connection_that_was_given_up_in_the_handshake_breaks_nothing(small_run, admitted):
    """Whether it is admitted before or after messages came over the one that is used."""
    here, there = small_run.join("here:0"), small_run.join("there:0")

    def give_up():
        identity = {"name": "here:0", "life": here.endpoint._life, "sent": 0}
        ended = threading.Event()
        connection = connect(
            here.registry.loop,
            there.endpoint.addresses[0],
            small_run._spec.secret,
            identity,
            lambda *_: None,
            lambda *_: ended.set(),
        )
        return connection, ended

    def exchange():
        here.mailbox.send("there:0", "hello").wait()
        assert there.mailbox.recv("here:0").wait(PROMPTLY) == "hello"

    if admitted == "before":
        connection, ended = give_up()
        wait_until(lambda: there.endpoint.connections.incoming("here:0"))
        exchange()
    else:
        exchange()
        connection, ended = give_up()
    connection.close()
    assert ended.wait(PROMPTLY)
    wait_until(lambda: len(there.endpoint.connections._in["here:0"]) == 1)
    there.endpoint._losses.settle("here:0")
    exchange()


def test_a_death_during_the_question_whether_a_peer_lives_is_told(small_run, monkeypatch):
    here, there = small_run.join("here:0"), small_run.join("there:0")
    here.mailbox.send("there:0", "first").wait()
    here.endpoint.connections._out["there:0"].sock.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: here.endpoint.ended("there:0"))
    ask = here.registry.ask

    def ask_when_it_dies(operation, **kwargs):
        if operation == "lives":
            small_run.kill(there)
        return ask(operation, **kwargs)

    monkeypatch.setattr(here.registry, "ask", ask_when_it_dies)
    assert isinstance(here.endpoint.lost("there:0"), WorkerDied)


class Registry:
    """Answers whether a process lives when a test lets it."""

    name = "here:0"

    def __init__(self):
        self.asked = 0
        self.answers = threading.Event()

    def ask(self, operation, **kwargs):
        assert operation == "responds"
        self.asked += 1
        self.answers.wait(PROMPTLY)
        return False


def test_who_waits_for_the_end_of_one_that_was_started_anew_is_told():
    registry, told = Registry(), []
    ends = PeerLosses(registry, lambda *_: None)
    ends.record("p:0", PeerLoss(WorkerDied("p:0"), "first"))
    ends.revive("p:0", "second")
    ends.when_known("p:0", "first", "writing failed", told.append)
    ends.doubt("p:0", "first", "the peer closed the connection")
    registry.answers.set()
    ends.settle("p:0")
    wait_until(lambda: told)
    assert isinstance(told[0], WorkerDied) and "writing failed" in str(told[0])
    assert registry.asked == 1, "one question is enough"
    assert ends.get("p:0") is None, "the second one lives"


def test_a_break_does_not_hide_a_death():
    ends = PeerLosses(Registry(), lambda *_: None)
    death = PeerLoss(WorkerDied("p:0"), "life")
    broken = PeerLoss(ConnectionBroken("here:0", peer="p:0", reason="cut"), "life")
    assert ends.record("p:0", broken, first=True)
    assert ends.record("p:0", death)
    assert not ends.record("p:0", broken, first=True)
    assert ends.get("p:0") is death


def test_an_unused_connection_may_be_given_up(small_run):
    here, there = small_run.join("here:0"), small_run.join("there:0")
    connection = here.endpoint.connections.to("there:0")
    wait_until(lambda: there.endpoint.connections.incoming("here:0"))
    connection.close("the handshake took too long")
    assert connection.over.wait(PROMPTLY)
    wait_until(lambda: not there.endpoint.connections.incoming("here:0"))
    here.mailbox.send("there:0", "hello").wait()
    assert there.mailbox.recv("here:0").wait(PROMPTLY) == "hello"
