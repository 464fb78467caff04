"""A run that lacks packages is refused before it writes or starts anything."""

from __future__ import annotations

import sys

import pytest

from rlinf.config import build_config, validate_cfg
from rlinf.runners.restarts import run_with_restarts


def test_a_run_without_its_simulator_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    for name in ("metaworld", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    overrides = [
        f"runner.logger.log_path={tmp_path / 'logs'}",
        "runner.logger.logger_backends=[wandb]",
    ]
    cfg = validate_cfg(build_config("metaworld_ppo_mlp", overrides))
    with pytest.raises(SystemExit) as ended:
        run_with_restarts(cfg, lambda cfg: pytest.fail("the job was started"))
    said = str(ended.value)
    assert said.startswith("error: the run needs packages that this Python does not have")
    assert 'env.train.env_type = "metaworld": metaworld\n' in said
    assert 'runner.logger.logger_backends = "wandb": wandb\n' in said
    assert said.count("pip install") == 1 and "[embodied,tracking]" in said
    assert not (tmp_path / "logs").exists()
