"""A rank never has more in memory than what it keeps, and a layer."""

from __future__ import annotations

import pytest

from benchmarks.model_memory import SHAPES, Usage, measure, table, write_folder


@pytest.fixture(scope="module")
def usages(tmp_path_factory):
    """What two ranks took that built a model of 110 MB and trained it for a step."""
    folder = tmp_path_factory.mktemp("model")
    write_folder(SHAPES["small"], folder)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return measure(folder, ranks=2, trains=True), size


@pytest.mark.timeout(180)
def test_building_takes_what_is_kept_and_reads_each_byte_once(usages):
    found, size = usages
    weights = 2 * size
    for usage in found:
        # The whole model, or a second copy of the shard, would be beyond it.
        assert usage.built < 1.2 * weights / 2 + usage.layer < 0.9 * weights
    assert sum(usage.read for usage in found) == pytest.approx(size, rel=0.01)


@pytest.mark.timeout(180)
def test_training_keeps_within_the_limit(usages):
    found, _ = usages
    for usage in found:
        assert usage.peak > 0.9 * usage.kept
        assert usage.peak < usage.limit


def test_the_worst_rank_is_shown():
    row = table([("tiny", 2, False, [Usage(100 << 20, 0, 0, 90 << 20, 0)] * 2)]).splitlines()[-1]
    assert row.startswith("| tiny | 2 | weights | 100 |") and row.endswith("| met |")
    worse = Usage(100 << 20, 0, 0, 130 << 20, 0)
    row = table([("tiny", 2, False, [Usage(100 << 20, 0, 0, 0, 0), worse])]).splitlines()[-1]
    assert "| 130 | 120 |" in row and row.endswith("| **missed** |")
