"""Token policies shard with FSDP2, recompute activations, and compute the same."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.unit_tests.models.openvla.policies import TOWERS, make, observe


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-5), (torch.bfloat16, 0.5)])
@pytest.mark.parametrize("kind", ["openvla_oft", "openvla"])
@pytest.mark.parametrize("is_lora", [False, True])
def test_a_sharded_policy_recomputes_the_same(mesh, kind, dtype, tolerance, is_lora):
    keys = {"num_images_in_input": 2, "add_value_head": True, "is_lora": is_lora}
    policy = make(kind, vision_towers=TOWERS, **keys)
    obs = observe(cameras=2)
    result = policy.predict_action_batch(obs)[1]
    policy.enable_gradient_checkpointing()
    precision = MixedPrecisionPolicy(param_dtype=dtype, cast_forward_inputs=False)
    sharded = 0
    for module in policy.modules():
        if type(module).__name__ in policy._no_split_modules:
            fully_shard(module, mesh=mesh, mp_policy=precision)
            sharded += 1
    assert sharded == 2 + 3 + 3
    fully_shard(policy, mesh=mesh, mp_policy=precision)
    out = policy(forward_inputs=result["forward_inputs"], compute_values=True)
    torch.testing.assert_close(out["logprobs"], result["prev_logprobs"], atol=tolerance, rtol=0)
    actions = torch.zeros(4, 2, 3)
    sft = policy(forward_type="sft", observations=obs, actions=actions)["logprobs"]
    (out["logprobs"].sum() + out["values"].sum() + sft.sum()).backward()
    for name, parameter in policy.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
