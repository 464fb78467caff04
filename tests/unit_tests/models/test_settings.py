"""The model section as the rollout builds it."""

import torch

from rlinf.config import reads, reset_reads
from rlinf.models import get_model
from rlinf.models.settings import rollout_section, section_to_rebuild
from tests.unit_tests.workers.actor.learning import SPEC, make_cfg, make_policy


def test_the_rollout_is_built_as_the_actor_is():
    cfg = make_cfg()
    assert rollout_section(cfg) == cfg.actor.model


def test_weights_of_the_rollout_are_those_it_is_given(tmp_path):
    given = make_policy(make_cfg(), seed=5)
    torch.save(given.state_dict(), tmp_path / "weights.pt")
    for key in ("rollout.model_dir", "rollout.model.model_path"):
        path = str(tmp_path / "weights.pt")
        cfg = make_cfg({key: path, "runner.ckpt_path": "elsewhere"})
        reset_reads()
        policy = get_model(rollout_section(cfg), SPEC, torch.float32)
        assert key in reads()
        for name, tensor in given.state_dict().items():
            assert torch.equal(policy.state_dict()[name], tensor), name
        assert cfg.actor.model.model_path is None


def test_a_folder_that_is_left_says_what_a_model_is(tmp_path):
    section = {"model_type": "openvla", "model_path": str(tmp_path)}
    assert section_to_rebuild(section) == section
    gone = section | {"model_path": str(tmp_path / "gone")}
    assert section_to_rebuild(gone)["model_path"] is None and gone["model_path"] is not None
