"""Sequences are dealt to ranks and cut into micro-batches, none lost and none twice."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.data.token_batch import TokenBatch
from rlinf.workers.actor.exchange import exchange
from rlinf.workers.actor.reasoning_batches import MicroBatches, deal


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), max_size=20),
    budget=st.integers(1, 60),
    padded=st.booleans(),
    others=st.integers(0, 25),
)
def test_micro_batches_keep_within_the_budget(lengths, budget, padded, others):
    plan = MicroBatches(budget, padded=padded, agree=lambda n: max(n, others))
    lengths = torch.tensor(lengths, dtype=torch.int64)
    rows = torch.randperm(len(lengths))[: max(0, len(lengths) - 2)]
    pieces = plan.split(lengths, rows)
    assert sorted(torch.cat(pieces).tolist()) == sorted(rows.tolist())
    assert len(pieces) >= max(1, others)
    for piece in pieces:
        own = lengths[piece]
        cost = len(own) * int(own.max()) if padded and len(own) else int(own.sum())
        assert cost <= budget or len(own) == 1
    if others > len(rows):
        assert len(pieces) == others and min(map(len, pieces)) == 0


def test_fewest_micro_batches_are_made():
    plan = MicroBatches(10)
    lengths = torch.tensor([4, 6, 5, 5, 1])
    pieces = plan.split(lengths, torch.arange(5))
    assert [lengths[piece].tolist() for piece in pieces] == [[6], [5, 5], [4, 1]]


def test_micro_batches_by_number_of_sequences():
    plan = MicroBatches(1, sequences=4)
    pieces = plan.split(torch.arange(1, 11), torch.arange(10))
    assert [len(piece) for piece in pieces] == [4, 4, 2]


def share(indices, size=2, length=3):
    count = len(indices) * size
    batch = TokenBatch.of_examples(
        [([i], [1] * (length + i)) for i in indices for _ in range(size)]
    )
    return TokenBatch(
        **vars(batch)
        | {"indices": torch.tensor(indices).repeat_interleave(size), "rewards": torch.rand(count)}
    )


class Ranks:
    """Ranks of an engine, as threads.

    Attributes:
        moved: sequences that have gone to another rank.
    """

    def __init__(self, count):
        self.world_size, self.moved = count, 0
        self._barrier = threading.Barrier(count)
        self._items = [None] * count
        self._rank = threading.local()

    def gather_objects(self, item):
        self._items[self._rank.number] = item
        self._barrier.wait(10)
        items = list(self._items)
        self._barrier.wait(10)
        return items

    def exchange_objects(self, items):
        rank = self._rank.number
        found = [items[rank] for items in self.gather_objects(items)]
        others = [part for sender, part in enumerate(found) if sender != rank and part is not None]
        self.moved += sum(part.num_sequences for part in others)
        return found

    def deal(self, shares, **keys):
        """What each rank gets."""
        how = partial(deal, ranks=self.world_size, **keys)

        def run(rank):
            self._rank.number = rank
            return exchange(self, [shares[rank]], rank, how)

        with ThreadPoolExecutor(self.world_size) as pool:
            return list(pool.map(run, range(self.world_size)))


def dealt(shares, rank, **keys):
    return Ranks(len(shares)).deal(shares, **keys)[rank]


def test_a_sequence_goes_to_one_rank_and_to_no_other():
    ranks = Ranks(3)
    found = ranks.deal([share([0, 4, 8]), share([1, 5]), share([2, 3])])
    assert [batch.indices.unique().tolist() for batch in found] == [[0, 1, 2], [3, 4], [5, 8]]
    # Of the first rank stays 0; of the second, nothing; of the third, nothing.
    assert ranks.moved == 2 * 6


def test_one_rank_gets_all_in_the_order_of_prompts():
    batch = dealt([share([5, 2, 9])], 0)
    assert batch.indices.tolist() == [2, 2, 5, 5, 9, 9]


@pytest.mark.parametrize("balance", [False, True])
def test_what_a_rank_gets_does_not_depend_on_where_groups_arrived(balance):
    numbers = list(range(10))
    arrivals = ([[3, 9, 0], [7, 1, 2, 8], [4, 6, 5]], [[0, 1, 2, 3], [9, 8, 7], [4, 5, 6]])
    for rank in range(3):
        one, other = (
            dealt([share(part) for part in arrival], rank, balance=balance) for arrival in arrivals
        )
        assert one.indices.tolist() == other.indices.tolist()
        assert one.tokens.tolist() == other.tokens.tolist()
        groups = one.indices.view(-1, 2)
        assert (groups[:, 0] == groups[:, 1]).all() and len(groups) == (4 if rank == 0 else 3)
        for index in groups[:, 0].tolist():
            numbers.remove(index)
    assert numbers == []


def test_balance_gives_ranks_about_as_many_tokens():
    parts = [share(list(range(30))), share(list(range(30, 60)))]
    plain = [int(dealt(parts, rank).lengths.sum()) for rank in range(2)]
    even = [int(dealt(parts, rank, balance=True).lengths.sum()) for rank in range(2)]
    assert plain[1] > 2 * plain[0]
    assert abs(even[1] - even[0]) <= 2 * 60


def test_ranks_may_get_nothing():
    parts = [share([4]), TokenBatch.of([])]
    assert dealt(parts, 0).num_sequences == 2
    assert dealt(parts, 1).num_sequences == 0


def test_only_the_groups_that_were_chosen_are_dealt():
    arrivals = ([[3, 9, 0], [7, 1]], [[1, 7, 9], [0, 3]])
    for rank, expected in ((0, [1, 1, 3, 3]), (1, [9, 9])):
        for arrival in arrivals:
            batch = dealt([share(part) for part in arrival], rank, chosen=[9, 1, 3])
            assert batch.indices.tolist() == expected
    with pytest.raises(ValueError, match=r"prompts \[4\] were chosen but have not come"):
        dealt([share([3, 9])], 0, chosen=[3, 4])
