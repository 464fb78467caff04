"""A run that begins with weights that are not there is refused before it starts."""

import pytest

from rlinf.config import build_config, validate_cfg
from rlinf.runners.first_weights import require_first_weights
from rlinf.runners.run_folder import RunRefused


def make(*overrides, recipe="metaworld_grpo_flow"):
    return validate_cfg(build_config(recipe, list(overrides)))


def test_weights_of_a_recipe_are_told_with_the_way_to_make_them(tmp_path, monkeypatch):
    cfg = make()
    monkeypatch.chdir(tmp_path)
    missing = "runner.ckpt_path: there are no weights at logs/metaworld_sft_flow;"
    with pytest.raises(RunRefused, match=f"^{missing} make them with: rlinf train metaworld_sft_"):
        require_first_weights(cfg)


def test_other_weights_are_told_with_what_is_allowed(tmp_path):
    missing = tmp_path / "none"
    with pytest.raises(RunRefused, match=f"no weights at {missing}; it takes a checkpoint, a run"):
        require_first_weights(make(f"runner.ckpt_path={missing}"))
    older = f"actor.checkpoint_load_path={missing}"
    with pytest.raises(RunRefused, match=f"^actor.checkpoint_load_path: .* at {missing};"):
        require_first_weights(make(older, recipe="metaworld_ppo_mlp"))


def test_weights_elsewhere_are_not_made_by_training_the_recipe(tmp_path):
    missing = tmp_path / "metaworld_sft_flow"
    with pytest.raises(RunRefused, match=f"no weights at {missing}; it takes"):
        require_first_weights(make(f"runner.ckpt_path={missing}"))


def test_runs_that_need_none_or_have_them_go_on(tmp_path):
    require_first_weights(make(recipe="metaworld_ppo_mlp"))
    require_first_weights(make(f"runner.ckpt_path={tmp_path}"))


def test_other_machines_may_see_other_folders(tmp_path):
    require_first_weights(make(f"runner.ckpt_path={tmp_path}/none", "cluster.num_nodes=2"))
