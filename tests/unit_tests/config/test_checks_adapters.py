"""What a user of adapters of a policy sees when keys do not fit one another."""

import pytest

from rlinf.config import validate_cfg
from tests.unit_tests.models.openvla.policies import section
from tests.unit_tests.workers.actor.learning import BASE

BEGINS = {"runner": BASE["runner"] | {"ckpt_path": "logs/before"}}


def check(runner=None, **keys):
    own = {"runner": runner} if runner else {}
    model = section(num_action_chunks=3, add_value_head=True, **keys)
    return validate_cfg(BASE | own | {"actor": BASE["actor"] | {"model": model}})


@pytest.mark.parametrize(
    ("key", "value"),
    [("lora_path", "adapters"), ("lora_alpha", 16), ("lora_target_modules", ["q_proj"])],
)
def test_keys_of_adapters_need_adapters(key, value):
    with pytest.raises(ValueError, match=rf"(?s)actor.model.{key} = .*is_lora is false"):
        check(**{key: value})


def test_a_random_base_is_not_frozen():
    with pytest.raises(ValueError, match=r"(?s)actor.model.is_lora = true.*runner.ckpt_path"):
        check(is_lora=True)
    cfg = check(runner=BEGINS["runner"], is_lora=True, lora_rank=8)
    assert cfg.actor.model.lora_rank == 8
    assert check().actor.model.is_lora is False
