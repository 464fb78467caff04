"""The rules of a channel, without processes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.scheduler.channel.entries import Get, Item, Put
from rlinf.scheduler.channel.errors import ChannelClosed, ChannelEmpty, ChannelFull, ItemLost
from rlinf.scheduler.channel.queues import Queues


class Sink:
    """Remembers outcomes by request."""

    def __init__(self):
        self.outcomes = {}
        self.freed = []
        self.loans = {}
        self.consumers = {}
        self.recalled = []

    def accepted(self, request):
        self.outcomes[request] = "accepted"

    def granted(self, request, items, ahead):
        self.outcomes[request] = [item.body for item in items]
        if ahead:
            self.loans[self.consumers[request], ahead[0].key] = [item.body for item in ahead]

    def recall(self, channel, consumer, key):
        self.recalled.append((consumer, key))

    def failed(self, request, error):
        self.outcomes[request] = error

    def dropped(self, item):
        self.freed.append(item.body)


def make(**kwargs):
    sink = Sink()
    return Queues("c", sink, **kwargs), sink


def item(body, weight=0.0, nbytes=1, key="k", producer="p", ticket=None):
    return Item(body, weight, nbytes, producer, key, ticket)


def put(queues, request, body, wait=True, **kwargs):
    queues.put(Put(request, item(body, **kwargs)), wait)


def get(queues, request, key="k", target=None, wait=True, consumer="c"):
    queues._sink.consumers[request] = consumer
    queues.get(key, Get(request, consumer, target), wait)


def test_first_in_first_out_per_key_and_first_come_first_served():
    queues, sink = make()
    get(queues, "g1")
    get(queues, "g2")
    for i in range(3):
        put(queues, f"p{i}", i)
    put(queues, "px", "x", key="other")
    get(queues, "g3")
    get(queues, "gx", key="other")
    assert [sink.outcomes[f"g{i}"] for i in (1, 2, 3)] == [[0], [1], [2]]
    assert sink.outcomes["gx"] == ["x"]
    assert queues.keys() == []


def test_bounds_by_items_and_bytes():
    queues, sink = make(maxsize=2)
    for i in range(3):
        put(queues, i, i)
    assert 2 not in sink.outcomes and queues.full("k")
    put(queues, "now", 9, wait=False)
    assert isinstance(sink.outcomes["now"], ChannelFull)
    get(queues, "g")
    assert sink.outcomes[2] == "accepted"
    queues, sink = make(maxbytes=10)
    put(queues, "huge", "h", nbytes=50)
    assert sink.outcomes["huge"] == "accepted", "an item larger than the bound goes in alone"
    put(queues, "a", "a", nbytes=6, key="other")
    assert "a" not in sink.outcomes
    get(queues, "other", key="other")
    get(queues, "g")
    assert sink.outcomes["a"] == "accepted"
    assert sink.outcomes["other"] == ["a"], "room made by one key serves another"


def test_batches_by_weight():
    queues, sink = make()
    get(queues, "b1", target=5)
    for i, weight in enumerate([2, 2, 2, 9, 1]):
        put(queues, f"p{i}", i, weight=weight)
    assert sink.outcomes["b1"] == [0, 1], "the third would exceed the target"
    get(queues, "b2", target=5)
    assert sink.outcomes["b2"] == [2]
    get(queues, "b3", target=5)
    assert sink.outcomes["b3"] == [3], "an item heavier than the target comes alone"
    get(queues, "b4", target=5)
    assert "b4" not in sink.outcomes
    queues.close()
    assert sink.outcomes["b4"] == [4]


def test_a_batch_larger_than_the_channel_does_not_deadlock():
    queues, sink = make(maxsize=2)
    get(queues, "b", target=10)
    for i in range(3):
        put(queues, i, i, weight=1)
    get(queues, "b2", target=10)
    queues.close()
    taken = sink.outcomes["b"] + sink.outcomes["b2"]
    assert taken == [0, 1, 2]


def test_a_waiting_batch_does_not_keep_the_bytes_that_others_need():
    queues, sink = make(maxbytes=10)
    get(queues, "batch", key="a", target=100)
    put(queues, "p1", "x", key="a", weight=1, nbytes=8)
    put(queues, "p2", "y", key="b", nbytes=8)
    assert sink.outcomes["batch"] == ["x"]
    assert sink.outcomes["p2"] == "accepted"


def test_items_that_nobody_took_go_back_with_their_weight():
    queues, sink = make()
    for i in range(3):
        put(queues, f"p{i}", f"body {i}", weight=2)
    get(queues, "abandoned", target=4, consumer="a")
    queues.take_back("a", "abandoned", ["copy 0", "copy 1"])
    get(queues, "again", target=4, consumer="b")
    assert sink.outcomes["again"] == ["copy 0", "copy 1"]
    queues.consumer_gone("a")
    assert queues.broken is None, "what was returned is not lost with its reader"


def test_close_drains_then_ends_and_refuses():
    queues, sink = make(maxsize=1)
    put(queues, "p1", 1)
    put(queues, "p2", 2)
    queues.close()
    assert isinstance(sink.outcomes["p2"], ChannelClosed)
    get(queues, "g1")
    get(queues, "g2")
    put(queues, "p3", 3)
    assert sink.outcomes["g1"] == [1]
    assert isinstance(sink.outcomes["g2"], ChannelClosed)
    assert isinstance(sink.outcomes["p3"], ChannelClosed)
    assert sink.freed.count(2) == 1 and sink.freed.count(3) == 1


def test_nowait_and_cancel():
    queues, sink = make(maxsize=1)
    get(queues, "g", wait=False)
    assert isinstance(sink.outcomes["g"], ChannelEmpty)
    get(queues, "w")
    assert queues.cancel("k", "w")
    assert not queues.cancel("k", "w")
    put(queues, "p", 1)
    put(queues, "blocked", 2)
    assert queues.cancel("k", "blocked")
    get(queues, "g2")
    assert sink.outcomes["g2"] == [1]
    assert queues.keys() == []


def test_a_dead_consumer_loses_nothing_silently():
    queues, sink = make()
    for i in range(3):
        put(queues, f"p{i}", i)
    get(queues, "g0", consumer="a")
    get(queues, "g1", consumer="a")
    get(queues, "waiting", key="empty", consumer="b")
    assert sink.freed == [0], "asking for the next one acknowledges the last"
    queues.consumer_gone("a")
    get(queues, "g2", consumer="b")
    for request in ("waiting", "g2"):
        assert isinstance(sink.outcomes[request], ItemLost)
        assert "a died with 1 item" in str(sink.outcomes[request])
    queues, sink = make(redeliver=True)
    for i in range(3):
        put(queues, f"p{i}", i)
    get(queues, "b", target=2, consumer="a")
    queues.consumer_gone("a")
    for i in range(3):
        get(queues, f"g{i}", consumer="b")
    assert [sink.outcomes[f"g{i}"] for i in range(3)] == [[0], [1], [2]]


def test_a_channel_that_is_lost_keeps_nothing():
    queues, sink = make(maxsize=2, ahead=2)
    put(queues, "other", "lent", key="other")
    put(queues, "more", "lent, too", key="other")
    get(queues, "b1", key="other", consumer="b")
    put(queues, "third", "lent as well", key="other")
    get(queues, "b2", key="other", consumer="b")
    assert sink.loans == {("b", "other"): ["lent as well"]}
    for i in range(3):
        put(queues, f"p{i}", i)
    get(queues, "g", consumer="a")
    put(queues, "p3", 3)
    assert "p3" not in sink.outcomes
    sink.freed.clear()
    queues.consumer_gone("a")
    assert isinstance(sink.outcomes["p3"], ItemLost)
    assert sorted(sink.freed) == [0, 1, 2, 3], "held, queued, and waiting for room"
    queues.returned("b", "other")
    assert sink.freed[-1] == "lent as well"
    assert (queues.stats.depth, queues.stats.bytes, queues.stats.lost) == (0, 0, 1)
    assert queues.keys() == []


def test_a_sole_reader_is_lent_items_after_another_one_died():
    queues, sink = make(ahead=2, redeliver=True)
    for i in range(6):
        put(queues, f"p{i}", i)
    get(queues, "a1", consumer="a")
    get(queues, "b1", consumer="b")
    queues.acknowledge("a")
    queues.consumer_gone("a")
    get(queues, "b2", consumer="b")
    assert sink.loans == {("b", "k"): [3, 4]}


def test_items_that_went_with_their_producer_are_reported_one_by_one():
    queues, sink = make()
    put(queues, "p0", "here")
    put(queues, "p1", None, ticket=7)
    put(queues, "p2", "also here", producer="q")
    queues.producer_gone("p")
    for i in range(3):
        get(queues, f"g{i}")
    assert sink.outcomes["g0"] == ["here"]
    assert isinstance(sink.outcomes["g1"], ItemLost) and "producer p" in str(sink.outcomes["g1"])
    assert sink.outcomes["g2"] == ["also here"]


def test_an_item_that_outlives_its_producer_with_a_consumer_goes_with_that():
    queues, sink = make(redeliver=True)
    put(queues, 1, "large", ticket=1)
    get(queues, 2, consumer="a")
    assert sink.outcomes[2] == ["large"]
    queues.producer_gone("p")
    queues.consumer_gone("a")
    get(queues, 3, consumer="b")
    assert isinstance(sink.outcomes[3], ItemLost)
    assert queues.stats.lost == 1


def test_a_broken_connection_is_not_called_a_death():
    queues, sink = make()
    put(queues, 1, "small")
    get(queues, 2, consumer="a")
    queues.consumer_gone("a", broken=True)
    get(queues, 3, consumer="b")
    assert "a lost its connection to the channel with 1 item" in str(sink.outcomes[3])


def test_a_sole_reader_is_lent_the_next_items_and_gives_them_up_for_another():
    queues, sink = make(ahead=2)
    for i in range(6):
        put(queues, f"p{i}", i)
    get(queues, "a1", consumer="a")
    assert not sink.loans, "one request does not make a habit"
    get(queues, "a2", consumer="a")
    assert sink.outcomes["a2"] == [1] and sink.loans["a", "k"] == [2, 3]
    assert queues.size("k") == 4, "lent items are still in the channel"
    queues.take("a", "k")
    assert queues.size("k") == 3 and queues.stats.gets == 3
    get(queues, "b1", consumer="b")
    get(queues, "b2", consumer="b")
    assert "b1" not in sink.outcomes and sink.recalled == [("a", "k")], "asked once"
    queues.returned("a", "k")
    assert [sink.outcomes[request] for request in ("b1", "b2")] == [[3], [4]], "in order"
    get(queues, "b3", consumer="b")
    assert sink.outcomes["b3"] == [5] and len(sink.loans) == 1, "nothing is lent to one of two"


def test_who_does_not_wait_waits_for_the_return_of_a_loan_only():
    queues, sink = make(ahead=4)
    for i in range(3):
        put(queues, f"p{i}", i)
    get(queues, "a1", consumer="a")
    get(queues, "a2", consumer="a")
    get(queues, "b1", consumer="b", wait=False)
    get(queues, "b2", consumer="b", wait=False)
    queues.returned("a", "k")
    assert sink.outcomes["b1"] == [2]
    assert isinstance(sink.outcomes["b2"], ChannelEmpty)


def test_loans_come_back_to_their_places_before_a_batch_is_made():
    queues, sink = make(ahead=2)
    for i in range(8):
        put(queues, f"p{i}", i)
    for request in ("a1", "a2"):
        get(queues, request, consumer="a")
    assert sink.loans == {("a", "k"): [2, 3]}
    assert [item.body for item in queues.peek("k")] == [*range(2, 8)]
    queues.take("a", "k")
    get(queues, "all", consumer="c", target=100.0)
    queues.close()
    assert "all" not in sink.outcomes
    queues.returned("a", "k")
    assert sink.outcomes["all"] == [*range(3, 8)]


def test_a_full_channel_has_room_when_a_lent_item_is_taken():
    queues, sink = make(ahead=4, maxsize=3)
    for i in range(5):
        put(queues, f"p{i}", i)
    get(queues, "g0")
    get(queues, "g1")
    assert sink.loans["c", "k"] == [2, 3] and "p4" in sink.outcomes
    put(queues, "p5", 5)
    assert "p5" not in sink.outcomes
    queues.take("c", "k")
    assert sink.outcomes["p5"] == "accepted"


def test_a_reader_that_dies_leaves_what_it_was_lent():
    queues, sink = make(ahead=4, redeliver=True)
    for i in range(4):
        put(queues, f"p{i}", i)
    get(queues, "a1", consumer="a")
    get(queues, "a2", consumer="a")
    queues.take("a", "k")
    get(queues, "b1", consumer="b")
    queues.consumer_gone("a")
    get(queues, "b2", consumer="b")
    assert [sink.outcomes["b1"], sink.outcomes["b2"]] == [[2], [3]], "2 was held by the dead one"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "get", "get", "batch", "cancel", "die", "answer"]),
            st.integers(0, 2),
            st.integers(1, 4),
        ),
        max_size=80,
    ),
    st.integers(0, 3),
    st.integers(0, 8),
    st.integers(0, 3),
)
def test_every_item_is_granted_exactly_once(steps, maxsize, maxbytes, ahead):
    queues, sink = make(maxsize=maxsize, maxbytes=maxbytes, redeliver=True, ahead=ahead)
    number, taken = 0, []

    def consume(consumer, key, request):
        """Takes a lent item if there is one, as a client does."""
        loan = sink.loans.get((consumer, key))
        if loan:
            queues.take(consumer, key)
            taken.append(loan.pop(0))
        else:
            get(queues, request, key=key, consumer=consumer)

    def answer(place):
        sink.loans.pop(place, None)
        queues.returned(*place)

    for action, key, amount in steps:
        number += 1
        consumer = f"c{amount % 2}"
        if action == "put":
            put(queues, ("p", number), (key, number), key=key, weight=amount, nbytes=amount)
        elif action == "get":
            consume(consumer, key, ("g", number))
        elif action == "batch":
            if sink.loans.get((consumer, key)):
                answer((consumer, key))
            get(queues, ("g", number), key=key, target=amount, consumer=consumer)
        elif action == "cancel":
            for k, entry in list(queues.waiting())[:1]:
                if isinstance(entry, Get):
                    assert queues.cancel(k, entry.request)
        elif action == "die":
            for place in [p for p in sink.loans if p[0] == consumer]:
                del sink.loans[place]
            sink.recalled = [p for p in sink.recalled if p[0] != consumer]
            queues.consumer_gone(consumer)
        elif action == "answer" and sink.recalled:
            answer(sink.recalled.pop(0))
    while sink.recalled:
        answer(sink.recalled.pop(0))
    queues.close()
    for key in range(3):
        while queues.size(key):
            number += 1
            consume("last", key, ("g", number))
            while sink.recalled:
                answer(sink.recalled.pop(0))
    got = taken + [
        body
        for r, o in sorted(sink.outcomes.items())
        if r[0] == "g" and isinstance(o, list)
        for body in o
    ]
    accepted = sorted({r[1] for r, o in sink.outcomes.items() if r[0] == "p" and o == "accepted"})
    again = queues.stats.redelivered
    assert sorted({body[1] for body in got}) == accepted
    assert len(got) == len(accepted) + again, "once each, and once more after each death"
    assert queues.stats.depth == 0 and queues.stats.bytes == 0
    assert queues.keys() == []


@pytest.mark.parametrize("count", [10_000])
def test_unused_keys_cost_nothing(count):
    queues, _ = make()
    for i in range(count):
        put(queues, ("p", i), i, key=i)
        get(queues, ("g", i), key=i)
    assert queues.keys() == [] and len(queues._lines) == 0
