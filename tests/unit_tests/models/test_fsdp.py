"""Policies shard with FSDP2 and compute the same."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.unit_tests.models.conftest import CHOICES, name_of


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize(
    "keys",
    [{}, {"spec": CHOICES}, {"model_type": "cnn_policy", "pooling": "spatial_softmax"}],
    ids=name_of,
)
def test_a_sharded_policy_recomputes_the_same(mesh, make_policy, make_obs, keys, dtype, tolerance):
    policy = make_policy(**keys)
    policy.update_normalizer(make_obs(50))
    result = policy.predict_action_batch(make_obs())[1]
    precision = MixedPrecisionPolicy(param_dtype=dtype, cast_forward_inputs=False)
    for module in policy.modules():
        if type(module).__name__ in policy._no_split_modules:
            fully_shard(module, mesh=mesh, mp_policy=precision)
    fully_shard(policy, mesh=mesh, mp_policy=precision)
    out = policy(forward_inputs=result["forward_inputs"], compute_entropy=True, compute_values=True)
    torch.testing.assert_close(out["logprobs"], result["prev_logprobs"], atol=tolerance, rtol=0)
    torch.testing.assert_close(out["values"], result["prev_values"], atol=10 * tolerance, rtol=0)
    (out["logprobs"].sum() + out["entropy"].sum() + out["values"].sum()).backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())
    before = policy.normalizer.count.item()
    policy.update_normalizer(result["forward_inputs"], all_reduce=dist.all_reduce)
    assert policy.normalizer.count.item() == before + 8
