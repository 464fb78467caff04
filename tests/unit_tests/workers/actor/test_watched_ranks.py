"""Agreement, fingerprints and memory with two ranks: one job, and what each rank saw of it."""

import pytest

from rlinf.hybrid_engines.fsdp.memory import TrainingBytes
from rlinf.utils.fingerprints import split_hashes
from tests.unit_tests.workers.actor.learning import columns, learn, make_cfg, make_learner, rollout
from tests.unit_tests.workers.actor.test_agreement import ENVS, evidence_of
from tests.unit_tests.workers.actor.two_ranks import run_two_ranks

WATCHED = {
    "runner.deterministic": True,
    # Rows that two ranks cannot share equally.
    "actor.model.hidden_sizes": [13, 7],
    "actor.global_batch_size": 32,
}


def watched_job(rank=0, world_size=1):
    """One rollout, in which rank 1 has a wrong log-probability and a wrong row."""
    learner = make_learner(make_cfg(WATCHED), rank=rank, world_size=world_size)
    policy = make_learner(make_cfg(WATCHED)).engine.model
    whole, share = rollout(policy), 8 // world_size
    batch = columns(whole, slice(rank * share, (rank + 1) * share))
    good = evidence_of(policy, whole)
    policy.log_std.data[0] += 1e-3
    bad = evidence_of(policy, whole, worker="RolloutGroup:1")
    if rank == world_size - 1:
        batch.prev_logprobs[0, -1, 1] += 2.0
        batch.forward_inputs["states"][0, -1] = 0.0
    out = {"start": learner.fingerprints.take()}
    out["numbers"], _ = learner.agreement(batch)
    envs = list(ENVS)[rank * share : (rank + 1) * share]
    out["found"] = learner.find_differences(batch, envs, [good, bad])
    learn(learner, batch)
    out["record"], out["names"] = learner.fingerprints.take(), learner.fingerprints.names()
    out["bytes"] = own_bytes(learner.engine)
    return out


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def own_bytes(engine):
    """What lies in the memory of this rank."""
    parameters = list(engine.model.parameters())
    states = [value for state in engine.optimizer.state.values() for value in state.values()]
    return {
        "parameters": sum(local(parameter).nbytes for parameter in parameters),
        "optimizer": sum(local(value).nbytes for value in states),
    }


def run_rank(rank):
    return watched_job(rank, 2)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_two_ranks(run_rank, tmp_path_factory.mktemp("ranks"))


def test_ranks_agree_on_the_numbers_and_name_their_own_rows(ranks):
    one = watched_job()
    assert ranks[0]["numbers"] == ranks[1]["numbers"] == pytest.approx(one["numbers"], rel=1e-4)
    assert ranks[0]["numbers"]["logprob_max"] > 1.0
    assert [found.part for found in ranks[0]["found"]] == ["weights"]
    assert [found.part for found in ranks[1]["found"]] == ["weights", "inputs"]
    assert "RolloutGroup:1" in ranks[0]["found"][0].text
    assert "env 107 in chunk step 0" in ranks[1]["found"][1].text
    assert [found.part for found in one["found"]] == ["weights", "inputs"]


def test_weights_have_the_same_fingerprint_on_any_number_of_ranks(ranks):
    one = watched_job()
    assert ranks[0]["names"] == one["names"]
    assert ranks[0]["start"]["weights"] == ranks[1]["start"]["weights"] == one["start"]["weights"]
    assert len(split_hashes(one["start"]["weights"])) == len(one["names"]["weights"])
    for key in ("updates", "weights"):
        assert ranks[0]["record"][key] == ranks[1]["record"][key]
    assert len(ranks[0]["record"]["updates"]) == 3
    # A batch belongs to a rank.
    assert ranks[0]["record"]["batch"] != ranks[1]["record"]["batch"]


def test_the_rank_that_has_most_has_what_was_predicted(ranks):
    predicted = TrainingBytes.of(make_learner(make_cfg(WATCHED)).engine.model, ranks=2)
    for part in ("parameters", "optimizer"):
        most = max(rank["bytes"][part] for rank in ranks)
        assert most == getattr(predicted, part)
        assert most > min(rank["bytes"][part] for rank in ranks)
