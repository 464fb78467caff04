"""Policies with an action expert shard with FSDP2, recompute activations, and compute the same."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.unit_tests.models.flow_vla.policies import KINDS, make
from tests.unit_tests.models.openvla.policies import observe


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-4), (torch.bfloat16, 0.5)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sharded_policy_recomputes_the_same(mesh, kind, dtype, tolerance):
    policy = make(kind, add_value_head=True, joint_logprob=True)
    obs = observe(cameras=2)
    result = policy.predict_action_batch(obs)[1]
    policy.enable_gradient_checkpointing()
    precision = MixedPrecisionPolicy(param_dtype=dtype, cast_forward_inputs=False)
    sharded = 0
    for module in policy.modules():
        if type(module).__name__ in policy._no_split_modules:
            fully_shard(module, mesh=mesh, mp_policy=precision)
            sharded += 1
    # Two layers of the vision tower, and those of the other stacks.
    assert sharded == 2 + {"smolvla": 4 + 4, "gr00t": 2 + 2 + 4}.get(kind, 3 + 3)
    fully_shard(policy, mesh=mesh, mp_policy=precision)
    out = policy(forward_inputs=result["forward_inputs"], compute_values=True)
    torch.testing.assert_close(out["logprobs"], result["prev_logprobs"], atol=tolerance, rtol=0)
    torch.testing.assert_close(out["values"], result["prev_values"], atol=tolerance, rtol=0)
    losses = policy("sft", observations=obs, actions=torch.zeros(4, 2, 3))["losses"]
    x, time = result["forward_inputs"]["chain"][:, :2], torch.rand(4, 2)
    velocities = policy("nft", forward_inputs=result["forward_inputs"], x=x, time=time)
    (out["logprobs"].sum() + out["values"].sum() + losses.sum() + velocities.sum()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
