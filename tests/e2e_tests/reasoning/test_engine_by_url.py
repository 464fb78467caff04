"""Whole GRPO jobs whose engine is a server that is reached by its URL."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from rlinf.config import build_config, validate_cfg
from rlinf.data.tokenizer import tokenizer_of_run
from rlinf.models import get_model
from tests.e2e_tests.reasoning.jobs import CONFIGS, SHORT, make_runner, metrics_of
from tests.long_tests import long_test
from tests.unit_tests.hybrid_engines.generation.remote.real_servers import serving
from tests.unit_tests.hybrid_engines.generation.remote.serving import SmallServer

RECIPE = "arithmetic_grpo"
# vLLM on a CPU does not take new weights of a matrix that is used twice.
UNTIED = "actor.model.hf_config.tie_word_embeddings=false"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The model that the recipe begins with, and its tokenizer, as a server needs them."""
    place = tmp_path_factory.mktemp("model")
    cfg = validate_cfg(build_config(RECIPE, overrides=[UNTIED], config_path=CONFIGS))
    torch.manual_seed(cfg.runner.seed)
    tokenizer = tokenizer_of_run(cfg)
    plain = get_model(cfg.actor.model, dtype=torch.float32).plain
    for config in (plain.config, plain.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    plain.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def by_url(backend: str, url: str, folder: Path, weights: Path) -> list[str]:
    """Overrides: the engine is elsewhere, and must agree with the actor in every step."""
    return [
        "~actor.model.hf_config",
        f"actor.model.model_path={folder}",
        f"actor.tokenizer.tokenizer_model={folder}",
        f"rollout.rollout_backend={backend}",
        f"rollout.server.url={url}",
        f"rollout.server.weights_folder={weights}",
        "runner.agreement.interval=1",
        "runner.agreement.tolerance=1e-3",
    ]


def steps_of(runner) -> list[dict]:
    """The metrics of its steps, in each of which engine and actor have agreed."""
    steps = [line for line in metrics_of(runner) if "rollout/score" in line]
    assert [line["step"] for line in steps] == list(range(1, len(steps) + 1))
    for line in steps:
        assert line["train/agreement/compared"] == 1.0
        assert line["train/agreement/logprob_max"] < 1e-3
    return steps


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", [pytest.param("vllm_server", marks=long_test), "sglang_server"])
def test_a_job_with_an_engine_elsewhere(runners, tmp_path, folder, backend):
    """The server has new weights in every step, and these are what it generates with."""
    with SmallServer(str(folder)) as server:
        loaded: list[dict[str, torch.Tensor]] = []
        load = server.load

        def remember(place: str) -> None:
            load(place)
            state = server.engine.model.state_dict()
            loaded.append({name: tensor.clone() for name, tensor in state.items()})

        server.load = remember
        overrides = [
            *SHORT,
            "runner.max_steps=3",
            # Some answers have to be right.
            "actor.supervised.steps=100",
            "actor.supervised.batch_size=64",
            "actor.optim.lr=2e-3",
        ]
        overrides += by_url(backend, server.url, folder, tmp_path / "weights")
        runner = make_runner(runners, tmp_path / "run", *overrides)
        assert runner.run()["status"] == "finished"
        steps = steps_of(runner)
        weights = runner.actor.weights().wait()[0]
        trained = {name.removeprefix("lm."): tensor for name, tensor in weights.items()}
    assert len(steps) == 3 and len(server.asked) >= 3 * 8 * 4
    # The first update is followed by a proof, and each later one is one load.
    latest = loaded[-3:]
    for older, newer in [*itertools.pairwise(latest), (latest[0], trained)]:
        assert any(not torch.allclose(older[name], newer[name], atol=1e-4) for name in trained)
    assert len(list((tmp_path / "weights").iterdir())) <= 1, "old weights are kept"


@long_test
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["vllm_server", "sglang_server"])
def test_a_small_model_learns_with_a_real_server(runners, tmp_path, folder, backend):
    with serving(backend, folder, tmp_path / "server.log", running=64) as url:
        overrides = [
            "runner.max_steps=16",
            "runner.val_check_interval=16",
            "data.rollout_batch_size=16",
            "data.val_size=100",
            "actor.supervised.steps=120",
            "actor.optim.lr=1e-4",
            "rollout.max_running_requests=64",
            *by_url(backend, url, folder, tmp_path / "weights"),
        ]
        runner = make_runner(runners, tmp_path / "run", *overrides)
        runner._supervise()
        before = runner.evaluate()["eval/pass@1"]
        runner._supervise = lambda: None
        summary = runner.run()
        assert summary["status"] == "finished" and len(steps_of(runner)) == 16
        after = summary["evaluation"]["eval/pass@1"]
    assert after > before + 0.1, (before, after)
