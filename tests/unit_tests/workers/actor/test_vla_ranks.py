"""Two ranks that share a vision-language-action policy make the update that one would make.

No rank has the whole policy at any time. Their networks have all parts of the published ones, with
pictures, at small sizes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlinf.models import get_model
from rlinf.utils.shards import own_part
from rlinf.workers.actor.embodied_learner import EmbodiedLearner
from rlinf.workers.actor.learner import LearnerPlace
from tests.long_tests import ALL_TESTS, long_test
from tests.unit_tests.models.flow_vla import policies as flow
from tests.unit_tests.models.openvla import policies as tokens
from tests.unit_tests.workers.actor.learning import (
    GRPO,
    SPEC,
    columns,
    distance,
    learn,
    make_cfg,
    rollout,
    weights,
)
from tests.unit_tests.workers.actor.two_ranks import run_two_ranks

CAMERAS = {"num_images_in_input": 2, "num_action_chunks": 2, "add_value_head": True}
SECTIONS = {
    "openvla": tokens.section("openvla", vision_towers=tokens.TOWERS, **CAMERAS),
    "openvla_oft": tokens.section(vision_towers=tokens.TOWERS, use_film=True, **CAMERAS),
    "smolvla": flow.section("smolvla", **CAMERAS),
    "pi0": flow.section("pi0", **CAMERAS),
    "pi05": flow.section("pi05", **CAMERAS),
    "gr00t": flow.section("gr00t", **CAMERAS),
}
COMMON = {
    "env.train.max_episode_steps": 8,
    "actor.micro_batch_size": 8,
    # Steps as long as gradients: Adam makes much of those that are nearly zero.
    "actor.optim": {"lr": 1e-3, "weight_decay": 0.0, "adam_eps": 1e-2},
}
METHODS: dict[str, dict[str, Any]] = {"ppo": {}, "grpo": GRPO}
ALWAYS = [
    ("smolvla", "ppo"),
    ("openvla_oft", "grpo"),
    ("openvla", "ppo"),
    ("pi05", "grpo"),
    ("gr00t", "ppo"),
]
CASES = [(kind, method) for kind in SECTIONS for method in METHODS]


def train(kind: str, method: str, rank: int = 0, world_size: int = 1) -> tuple[Any, ...]:
    """One rollout and its update; return metrics, weights, and how many numbers the rank has."""
    cfg = make_cfg({"actor.model": SECTIONS[kind], **COMMON, **METHODS[method]})
    torch.manual_seed(0)
    torch.set_num_threads(1)
    acting = get_model(cfg.actor.model, SPEC, torch.float32)
    torch.manual_seed(0)
    trained = get_model(cfg.actor.model, SPEC, torch.float32, deferred=True)
    assert all(parameter.is_meta for parameter in trained.parameters())
    place = LearnerPlace(torch.device("cpu"), seed=3, rank=rank, world_size=world_size)
    learner = EmbodiedLearner(cfg, trained, place)
    batch = rollout(acting, steps=4, picture_size=8)
    share = 8 // world_size
    own = columns(batch, slice(rank * share, (rank + 1) * share))
    of_rollout, of_update = learn(learner, own)
    held = sum(own_part(parameter).numel() for parameter in learner.engine.model.parameters())
    return of_rollout | of_update, weights(learner), held, dict(acting.state_dict())


def run_rank(rank: int) -> dict[tuple[str, str], tuple[Any, ...]]:
    return {case: train(*case, rank, 2) for case in (CASES if ALL_TESTS else ALWAYS)}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks got in each case."""
    return run_two_ranks(run_rank, tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "method"),
    [pytest.param(*c, marks=[] if c in ALWAYS else long_test, id="-".join(c)) for c in CASES],
)
def test_two_ranks_do_what_one_does(ranks, kind, method):
    metrics, expected, whole, before = train(kind, method)
    moved = {name for name, new in expected.items() if not torch.equal(new, before[name])}
    # Vision tower and language model learn, too.
    for part in ("vision", "text_model" if kind == "smolvla" else "language_model"):
        assert any(part in name for name in moved), part
    step = distance(expected, before)
    assert step > 1e-5
    for rank in ranks:
        own_metrics, own, held, _ = rank[kind, method]
        assert held < 0.6 * whole
        assert distance(own, expected) < 1e-2 * step
        assert own_metrics == pytest.approx(metrics, rel=1e-3, abs=1e-5)
    one, other = (rank[kind, method] for rank in ranks)
    assert one[2] + other[2] == whole
    assert distance(one[1], other[1]) == 0.0
