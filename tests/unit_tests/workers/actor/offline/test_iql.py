"""Implicit Q-learning: beside plain torch, on any number of ranks, resumed, and better than BC."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from rlinf.config import ConfigError, validate_cfg
from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint
from rlinf.models import get_model
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.offline.iql import IQLLearner
from rlinf.workers.actor.registry import learner_of
from tests.unit_tests.data.demonstrations.datasets import write_dataset
from tests.unit_tests.workers.actor.learning import distance, weights
from tests.unit_tests.workers.actor.two_ranks import run_two_ranks

SPEC = EnvSpec(obs_dim=5, action_dim=2, action_low=[-1, -1], action_high=[1, 1])
CHOICES = EnvSpec(obs_dim=5, action_dim=2, action_choices=(3, 2))
BASE = {
    "cluster": {"component_placement": {"actor,rollout,env": "0"}},
    "runner": {"task_type": "offline", "max_steps": 10, "local_update_steps": 4},
    "algorithm": {"loss_type": "offline_iql", "gamma": 0.9, "tau": 0.1, "expectile": 0.8},
    "data": {"train_data_paths": ["demos"]},
    "env": {"eval": {"env_type": "metaworld", "total_num_envs": 2}},
    "rollout": {},
    "actor": {
        "global_batch_size": 8,
        "model": {
            "model_type": "mlp_policy",
            "hidden_sizes": [16],
            "add_q_head": True,
            "add_value_head": True,
        },
        "optim": {"lr": 1e-2, "weight_decay": 0.0, "clip_grad": None},
    },
}


def make_cfg(folder, changes=None):
    data = copy.deepcopy(BASE)
    data["data"]["train_data_paths"] = [str(folder)]
    for path, value in (changes or {}).items():
        *parents, key = path.split(".")
        section = data
        for parent in parents:
            section = section.setdefault(parent, {})
        section[key] = copy.deepcopy(value)
    return validate_cfg(data)


def make_learner(folder, changes=None, spec=SPEC, rank=0, world_size=1):
    torch.set_num_threads(1)
    cfg = make_cfg(folder, changes)
    assert learner_of(cfg) is IQLLearner
    torch.manual_seed(0)
    policy = get_model(cfg.actor.model, spec, torch.float32)
    place = LearnerPlace(torch.device("cpu"), 3, rank, world_size, total_steps=40)
    return IQLLearner(cfg, policy, place)


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("demos") / "d", (5, 9, 12, 7), terminated=True)


def plain_steps(learner, changes, steps):
    """Make gradient steps with torch alone, from the formulas; return the weights."""
    cfg, demos = learner.cfg, learner.demos
    gamma, tau, beta = cfg.algorithm.gamma, cfg.algorithm.tau, cfg.algorithm.temperature
    chunks = cfg.actor.model.num_action_chunks
    net = copy.deepcopy(learner.engine.model)
    slow = copy.deepcopy(net)
    params = dict(net.named_parameters())
    groups = {
        "q": [p for n, p in params.items() if n.startswith("q_head.")],
        "v": [p for n, p in params.items() if n.startswith("value_head.")],
        "pi": [p for n, p in params.items() if not n.startswith(("q_head.", "value_head."))],
    }
    adam = {n: torch.optim.AdamW(ps, lr=1e-2, weight_decay=0.0) for n, ps in groups.items()}
    order = learner._order.rows(0, 8 * steps).view(steps, 8).tolist()
    begins = demos.begins.tolist()
    scale = learner._reward_scale

    def v(states):
        return net.value_head(net.normalizer(states))[0, 0]

    def q(network, states, action):
        joined = torch.cat([network.normalizer(states), action.reshape(1, -1)], 1)
        return network.q_head(joined)[:, 0]

    def sample(row):
        episode = next(e for e in range(len(begins)) if begins[e] <= row < begins[e + 1])
        end = begins[episode + 1]
        k = min(chunks, end - row)
        action = torch.stack([demos.actions[min(row + i, end - 1)] for i in range(chunks)])
        reward = scale * sum(gamma**i * demos.rewards[row + i] for i in range(k))
        after = demos.final["states"][episode] if row + k == end else demos.obs["states"][row + k]
        go_on = 0.0 if row + k == end and demos.terminated[episode] else gamma**k
        return demos.obs["states"][row][None], action, k, reward, go_on, after[None]

    def descend(name, loss):
        net.zero_grad()
        loss.backward()
        adam[name].step()

    for rows in order:
        batch = [sample(row) for row in rows]
        with torch.no_grad():
            best = [q(slow, s, a).min() for s, a, *_ in batch]
        loss = 0.0
        for (s, *_), target in zip(batch, best, strict=True):
            u = target - v(s)
            loss = loss + abs(cfg.algorithm.expectile - float(u < 0)) * u**2 / 8
        descend("v", loss)
        loss = 0.0
        for (s, a, k, *_), target in zip(batch, best, strict=True):
            with torch.no_grad():
                w = min(float(torch.exp(beta * (target - v(s)))), cfg.algorithm.max_weight)
            mean = net.policy_head(net.normalizer(s))
            normal = torch.distributions.Normal(mean, net.log_std.exp())
            loss = loss - w * normal.log_prob(a.reshape(1, -1))[0, : 2 * k].sum() / 8
        descend("pi", loss)
        loss = 0.0
        for s, a, _, reward, go_on, after in batch:
            with torch.no_grad():
                y = reward + go_on * v(after)
            loss = loss + 0.5 * ((q(net, s, a) - y) ** 2).sum() / 8
        descend("q", loss)
        with torch.no_grad():
            for p, own in zip(slow.q_head.parameters(), net.q_head.parameters(), strict=True):
                p.mul_(1 - tau).add_(tau * own)
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"actor.model.num_action_chunks": 3},
        {"actor.micro_batch_size": 2},
        {"algorithm.normalize_rewards": False, "algorithm.max_weight": 1.2},
    ],
    ids=["plain", "chunks", "micro-batches", "raw rewards"],
)
def test_a_gradient_step_is_that_of_the_formulas(demos, changes):
    learner = make_learner(demos, changes)
    expected = plain_steps(learner, changes, 4)
    metrics = learner.update()
    for name, tensor in weights(learner).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=2e-5, msg=name)
    assert metrics["actor/updates"] == metrics["critic/updates"] == metrics["value/updates"] == 4
    assert metrics["data/episodes"] == 4 and metrics["data/samples"] == 33


def graded(folder):
    """Episodes of states drawn anew: what agrees with the sign of the first number is rewarded."""
    from rlinf.data.lerobot.writer import DatasetWriter

    rng = np.random.default_rng(0)
    features = {
        "observation.state": {"dtype": "float32", "shape": (5,)},
        "action": {"dtype": "float32", "shape": (2,)},
        "next.reward": {"dtype": "float32", "shape": (1,)},
        "next.terminated": {"dtype": "bool", "shape": (1,)},
        "next.truncated": {"dtype": "bool", "shape": (1,)},
    }
    with DatasetWriter.create(folder, 10, features, final_observations=True) as writer:
        for _ in range(30):
            for left in reversed(range(10)):
                state = rng.normal(size=5).astype(np.float32)
                good = rng.random() < 0.4
                action = np.array([0.7, -0.7]) * np.sign(state[0]) * (1 if good else -1)
                frame = {"action": action, "next.reward": float(good)}
                frame |= {"next.terminated": left == 0, "next.truncated": False}
                writer.add_frame({"observation.state": state, **frame}, task="t")
            writer.save_episode({"observation.state": state})
    return folder


def test_it_learns_the_better_of_what_was_done(tmp_path):
    folder = graded(tmp_path / "d")
    changes = {"runner.local_update_steps": 200, "actor.global_batch_size": 64}
    # A step has no influence on the next one.
    changes["algorithm.gamma"] = 0.0
    agreement = {}
    for temperature in (0.0, 3.0):
        learner = make_learner(folder, {**changes, "algorithm.temperature": temperature})
        learner.update()
        obs = learner.demos.obs
        own, _ = learner.engine.model.predict_action_batch(obs, mode="eval")
        sign = obs["states"][:, :1].sign() * torch.tensor([1.0, -1.0])
        agreement[temperature] = float((own[:, 0] * sign).mean())
    # Cloning follows the majority, which is worse; weights turn it round.
    assert agreement[0.0] < 0.0 < 0.4 < agreement[3.0]


def test_choices_are_learned(tmp_path):
    def act(state):
        return np.array([int(state[0] > 0) + int(state[0] > 1), int(state[1] > 0)])

    folder = write_dataset(tmp_path / "d", (20, 30), act=act, choices=True)
    learner = make_learner(folder, {"runner.local_update_steps": 200}, CHOICES)
    learner.update()
    assert learner.update()["actor/action_error"] < 0.1


WITHOUT_HEADS = {"actor.model.add_q_head": False, "actor.model.add_value_head": False}
RANKS = ({}, {"actor.model.num_action_chunks": 3, "actor.micro_batch_size": 2})


def train(folder, changes, rank=0, world_size=1):
    learner = make_learner(folder, changes, rank=rank, world_size=world_size)
    seen = [learner.update() for _ in range(3)]
    return seen, weights(learner)


class _Ranks:
    def __init__(self, folder):
        self.folder = folder

    def __call__(self, rank):
        return [train(self.folder, changes, rank, 2) for changes in RANKS]


def test_two_ranks_do_what_one_does(demos, tmp_path):
    ranks = run_two_ranks(_Ranks(demos), tmp_path)
    for index, changes in enumerate(RANKS):
        seen, own = train(demos, changes)
        for rank in ranks:
            assert distance(rank[index][1], own) < 1e-4
            for ours, theirs in zip(seen, rank[index][0], strict=True):
                assert ours.keys() == theirs.keys()
                assert all(theirs[k] == pytest.approx(ours[k], rel=1e-3, abs=1e-5) for k in ours)


def test_resumed_is_as_if_nothing_had_happened(demos, tmp_path):
    changes = {"actor.optim.lr_scheduler": "cosine", "algorithm.target_update_freq": 3}
    whole = make_learner(demos, changes)
    metrics = [whole.update() for _ in range(4)]
    first = make_learner(demos, changes)
    first.update(), first.update()
    checkpoint = EngineCheckpoint(first.engine)
    checkpoint.write(checkpoint.snapshot(), tmp_path / "tensors")
    state = first.state()
    second = make_learner(demos, changes)
    EngineCheckpoint(second.engine).read(tmp_path / "tensors")
    assert second.load_state(state) == []
    assert [second.update(), second.update()] == metrics[2:]
    assert distance(weights(second), weights(whole)) == 0.0


def test_rewards_are_scaled_by_the_data(demos):
    learner = make_learner(demos)
    assert learner.update()["data/reward_scale"] == 1 / learner._data.return_deviation
    assert make_learner(demos, {"algorithm.normalize_rewards": False})._reward_scale == 1.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"actor.model.add_q_head": False}, "actor.model.add_q_head"),
        ({"actor.model.add_value_head": False}, "actor.model.add_value_head"),
        ({"actor.optim.value_lr": 1e-3}, "actor.optim.value_lr"),
        ({"algorithm.expectile": 1.0}, "algorithm.expectile"),
        ({"algorithm.bc_loss": "mse"}, "algorithm.bc_loss"),
    ],
)
def test_a_config_that_cannot_be_learned_with_is_refused(changes, said):
    with pytest.raises(ConfigError) as caught:
        make_cfg("demos", changes)
    assert said in str(caught.value)


def test_a_policy_without_heads_is_refused(demos):
    cfg = make_cfg(demos)
    bare = make_cfg(demos, {"algorithm": {"loss_type": "embodied_bc"}, **WITHOUT_HEADS})
    policy = get_model(bare.actor.model, SPEC, torch.float32)
    with pytest.raises(ValueError, match=r"actor.model.add_q_head"):
        IQLLearner(cfg, policy, LearnerPlace(torch.device("cpu")))
