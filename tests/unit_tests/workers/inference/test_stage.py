"""Groups pass through a stage whole, in any order, and each rank makes as many passes."""

from __future__ import annotations

import queue
import threading

import pytest
import torch

from rlinf.data.token_batch import TokenBatch
from rlinf.workers.inference.stage import pass_on, share_of
from tests.unit_tests.workers.actor.reasoning import make_cfg, make_groups, make_model


class Queue:
    """A channel inside this process."""

    def __init__(self) -> None:
        self._items: dict = {}

    def _of(self, key):
        return self._items.setdefault(key, queue.SimpleQueue())

    def put(self, item, key):
        self._of(key).put(item)

    def get(self, key, timeout=None):
        return self._of(key).get(timeout=10)

    def all(self, key):
        found = []
        while not self._of(key).empty():
            found.append(self._of(key).get())
        return found


def run(groups, ranks):
    """Lets groups pass through some ranks; returns them, and the passes of each rank."""
    source, target = Queue(), Queue()
    source._of(5)
    passes = [[] for _ in range(ranks)]

    def work(rank):
        def compute(batch: TokenBatch) -> torch.Tensor:
            passes[rank].append(batch.num_sequences)
            return batch.tokens[:0].float().new_full((len(batch.logprobs),), 0.5) + torch.arange(
                len(batch.logprobs)
            )

        pass_on(
            source,
            target,
            total=len(groups),
            key=5,
            rank=rank,
            world_size=ranks,
            what="old_logprobs",
            compute=compute,
        )

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for group in groups:
        source.put(group, key=5)
    for thread in threads:
        thread.join(20)
    return target.all(5), passes


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_group_comes_out_with_one_number_per_token(ranks):
    groups = make_groups(make_model(make_cfg().actor.model), count=5)
    out, passes = run(groups, ranks)
    assert sorted(group.prompt.index for group in out) == [0, 1, 2, 3, 4]
    # Ranks that exchange weights must make as many passes; some have nothing in the last one.
    assert len({len(own) for own in passes}) == 1
    assert sum(count for own in passes for count in own) == 5 * 4
    for group in out:
        flat = [x for sample in group.samples for x in sample.old_logprobs]
        assert flat == [0.5 + i for i in range(len(flat))]
        assert all(len(s.old_logprobs) == len(s.response_ids) for s in group.samples)


def test_shares_make_the_whole():
    for total in range(12):
        for ranks in range(1, 5):
            assert sum(share_of(total, rank, ranks) for rank in range(ranks)) == total


def test_a_batch_knows_what_all_of_its_samples_know():
    groups = make_groups(make_model(make_cfg().actor.model), count=3)
    assert TokenBatch.of(groups).old_logprobs is None
    for group in groups:
        for sample in group.samples:
            sample.values = [float(sample.sample_index)] * len(sample.response_ids)
    batch = TokenBatch.of(groups)
    rows = torch.tensor([7, 2])
    part = batch.select(rows)
    assert part.values.tolist() == [3.0] * int(batch.responses[7]) + [2.0] * int(batch.responses[2])
    empty = TokenBatch.of([])
    assert torch.equal(TokenBatch.join([part, empty, part]).values, part.values.repeat(2))
    assert TokenBatch.join([part, part]).ref_logprobs is None
    groups[1].samples[3].values = None
    with pytest.raises(ValueError, match="sample 3 of prompt 1 has none values"):
        TokenBatch.of(groups)
    for sample in groups[1].samples:
        sample.values = None
    with pytest.raises(ValueError, match="only some of the batches"):
        TokenBatch.join([batch, TokenBatch.of(groups[1:2])])
