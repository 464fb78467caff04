"""Running mean and variance are exact, however the data is cut."""

import threading

import pytest
import torch

from rlinf.utils.running_stats import RunningStats, merge, moments_of

torch.set_num_threads(1)


class Ranks:
    """Sums tensors over threads that stand for ranks."""

    def __init__(self, count):
        self.barrier = threading.Barrier(count, timeout=100)
        self.lock = threading.Lock()
        self.total = None

    def all_reduce(self, tensor):
        self.barrier.wait()
        with self.lock:
            self.total = tensor.clone() if self.total is None else self.total + tensor
        self.barrier.wait()
        tensor.copy_(self.total)
        if self.barrier.wait() == 0:
            self.total = None
        self.barrier.wait()

    def run(self, works):
        errors = {}

        def guarded(rank, work):
            try:
                work()
            except Exception as error:
                errors[rank] = error

        threads = [threading.Thread(target=guarded, args=pair) for pair in enumerate(works)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors


def data(rows=1000, dim=5):
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([1e-3, 1.0, 10.0, 1e3, 1.0], dtype=torch.float64)[:dim]
    shift = torch.tensor([0.0, 5.0, -3.0, 1e6, 1e4], dtype=torch.float64)[:dim]
    return torch.randn(rows, dim, generator=generator, dtype=torch.float64) * scale + shift


def assert_stats(stats, rows):
    assert stats.count.item() == len(rows)
    torch.testing.assert_close(stats.mean, rows.double().mean(0), rtol=1e-12, atol=1e-12)
    exact = rows.double().var(0, unbiased=False)
    torch.testing.assert_close(stats.var, exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 7, 250, 1000])
def test_batches_give_the_same_as_all_at_once(batch):
    rows, stats = data(), RunningStats(5)
    for part in rows.split(batch):
        stats.update(part)
    assert_stats(stats, rows)


def test_it_starts_neutral_and_scalars_work():
    stats = RunningStats()
    assert (stats.mean, stats.var, stats.count) == (0, 1, 0)
    stats.update(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert stats.mean == 3.0
    assert stats.var == 3.5
    assert stats.std == 3.5**0.5


def test_large_offsets_do_not_cancel():
    rows = torch.randn(1000, 1, dtype=torch.float64) + 1e9
    stats = RunningStats(1)
    for part in rows.split(10):
        stats.update(part)
    assert stats.var.item() == pytest.approx(rows.var(unbiased=False).item(), rel=1e-6)


@pytest.mark.parametrize("cuts", [(250, 250), (1, 499), (0, 500), (150, 150, 200), (0, 0, 500)])
def test_the_split_over_ranks_does_not_matter(cuts):
    rows = data()
    ranks, all_stats = Ranks(len(cuts)), [RunningStats(5) for _ in cuts]
    for half in rows.split(500):
        works = [
            lambda stats=stats, part=part: stats.update(part, all_reduce=ranks.all_reduce)
            for stats, part in zip(all_stats, half.split(cuts), strict=True)
        ]
        assert not ranks.run(works)
    for stats in all_stats:
        assert_stats(stats, rows)
        assert torch.equal(stats.mean, all_stats[0].mean)
        assert torch.equal(stats.var, all_stats[0].var)


def test_a_reduce_that_returns_the_sum_will_do():
    rows, stats = data(), RunningStats(5)
    stats.update(rows, all_reduce=lambda tensor: 2 * tensor)
    assert_stats(stats, torch.cat([rows, rows]))


def test_masked_rows_do_not_count_whatever_they_hold():
    rows, stats = data(), RunningStats(5)
    mask = torch.rand(1000, generator=torch.Generator().manual_seed(1)) < 0.3
    poisoned = rows.clone()
    poisoned[~mask] = torch.nan
    stats.update(poisoned.view(10, 100, 5), mask=mask.view(10, 100))
    assert_stats(stats, rows[mask])
    per_action = RunningStats(5)
    columns = torch.stack([torch.zeros_like(mask), mask], 1)
    per_action.update(poisoned, mask=columns)
    assert_stats(per_action, rows[mask])
    before = stats.state_dict()
    stats.update(poisoned, mask=torch.zeros(1000, dtype=torch.bool))
    assert all(torch.equal(before[key], value) for key, value in stats.state_dict().items())
    with pytest.raises(ValueError, match=r"mask has shape \(999,\), but there are 1000 values"):
        stats.update(rows, mask=mask[1:])


def test_bad_numbers_are_refused_by_every_rank():
    ranks, both = Ranks(2), [RunningStats(3), RunningStats(3)]
    good, bad = torch.ones(4, 3), torch.ones(4, 3)
    bad[2, 1] = torch.inf
    works = [
        lambda stats=stats, rows=rows: stats.update(rows, all_reduce=ranks.all_reduce)
        for stats, rows in zip(both, (good, bad), strict=True)
    ]
    errors = ranks.run(works)
    assert len(errors) == 2
    assert all("dimension(s) [1]" in str(error) for error in errors.values())
    assert all(stats.count == 0 for stats in both)
    with pytest.raises(ValueError, match=r"shape \(4, 2\), not \[batch..., 3\]"):
        both[0].update(torch.ones(4, 2))


def test_merging_with_nothing_changes_nothing():
    some = moments_of(data())
    nothing = moments_of(data()[:0])
    for merged in (merge(some, nothing), merge(nothing, some)):
        for one, other in zip(merged, some, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


def test_state_survives_casts_and_saving():
    stats = RunningStats(5)
    stats.update(data())
    mean = stats.mean.clone()
    stats.to(torch.bfloat16).half()
    assert stats.mean.dtype == torch.float64 and torch.equal(stats.mean, mean)
    other = RunningStats(5)
    other.load_state_dict(stats.state_dict())
    other.update(data())
    assert other.count == 2000
    with torch.device("meta"):
        empty = RunningStats(5)
    assert empty.to_empty(device="cpu").to(torch.float16).mean.dtype == torch.float64
