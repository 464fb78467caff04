"""Rollouts under way: their order, and who hands over what there is when others wait."""

from types import SimpleNamespace

import pytest

from rlinf.runners.rollout_queue import RolloutQueue


class Call:
    """A call of three ranks."""

    ranks = (0, 1, 2)

    def __init__(self, name):
        self.name = name


class Retry:
    """Tells of the ranks that end, in an order that the test gives."""

    def __init__(self):
        self.ends = []
        self.in_flight = tuple

    def run(self, start, ended=None):
        calls = start()
        by_name = {call.name: call for call in [*calls, *self.in_flight()]}
        for name, rank in self.ends:
            if ended is not None:
                ended(by_name[name], rank)
        return calls


@pytest.fixture
def queue():
    retry, cuts = Retry(), []

    def start(number):
        return Call(f"interact {number}"), Call(f"generate {number}")

    queue = RolloutQueue(retry, start, lambda: Call("receive"), lambda *given: cuts.append(given))
    return SimpleNamespace(queue=queue, retry=retry, cuts=cuts)


def generate(number, *ranks):
    return [(f"generate {number}", rank) for rank in ranks]


def test_rollouts_come_in_their_order(queue):
    taken = [queue.queue.take(2).number for _ in range(3)]
    assert taken == [1, 2, 3] and len(queue.queue) == 1
    assert [call.name for call in queue.queue.calls()] == ["interact 4", "generate 4"]


def test_who_is_behind_is_cut_when_all_others_have_nothing_left_to_do(queue):
    queue.retry.ends = [*generate(1, 0, 2), *generate(2, 0), ("interact 1", 0)]
    assert queue.queue.take(2).cut == [] and queue.cuts == []
    # Rank 1 has ended the first meanwhile, and rank 2 the second: rank 1 is behind in that.
    queue.retry.ends = [*generate(2, 0, 2), *generate(3, 0)]
    assert queue.queue.take(2).cut == []
    queue.retry.ends = [*generate(3, 0, 2), *generate(4, 2, 0), *generate(3, 1)]
    taken = queue.queue.take(2)
    assert taken.number == 3 and taken.cut == [1] and queue.cuts == [(3, [1])]


def test_nobody_is_cut_by_those_who_are_hardly_ahead(queue):
    """Of the last rollout there is none ahead: it is waited for."""
    queue.retry.ends = generate(1, 0, 2)
    assert queue.queue.take(1).cut == [] and queue.cuts == []


def test_whole_rollouts_only(queue):
    queue.queue._cut = None
    queue.retry.ends = [*generate(1, 0), *generate(2, 0)]
    assert queue.queue.take(2).cut == []
