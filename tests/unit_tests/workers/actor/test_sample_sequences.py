"""A policy that remembers, from the envs to the update: what was done is computed again whole."""

from __future__ import annotations

import copy

import pytest
import torch
from omegaconf import OmegaConf

from rlinf.config import ConfigError, validate_cfg
from rlinf.data.embodied import EmbodiedBatch
from rlinf.data.embodied_messages import pack_observations
from rlinf.envs import get_env_cls
from rlinf.models import get_model
from rlinf.workers.actor.embodied_learner import EmbodiedLearner
from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.sample_sequences import SampleSequences
from rlinf.workers.env.describe_envs import describe_envs
from rlinf.workers.env.trajectory_recorder import TrajectoryRecorder
from rlinf.workers.rollout.rollout_policy import RolloutPolicy

ENVS, CHUNKS, LENGTH = 6, 12, 4
WORDS = "go to the red green blue yellow ball box cone cross".split()
SMALL = {"word_dim": 8, "channels": [8, 8], "rnn_size": 12, "attention_dim": 10}
CFG = {
    "cluster": {"component_placement": {"actor,rollout,env": "0"}},
    "runner": {"task_type": "embodied", "max_steps": 10},
    "algorithm": {"adv_type": "gae", "loss_type": "actor_critic"},
    "env": {
        "train": {
            "env_type": "navigation",
            "total_num_envs": ENVS,
            "max_episode_steps": 7,
            "max_steps_per_rollout_epoch": CHUNKS,
        }
    },
    "rollout": {},
    "actor": {
        "model": {
            "model_type": "cma",
            "words": WORDS,
            "max_words": 5,
            "sequence_length": LENGTH,
            "add_value_head": True,
            **SMALL,
        },
        "optim": {"lr": 1e-2, "weight_decay": 0.0},
    },
}


def make_cfg(**changes):
    data = OmegaConf.create(copy.deepcopy(CFG))
    for path, value in changes.items():
        OmegaConf.update(data, path.replace("__", "."), value, force_add=True)
    return validate_cfg(OmegaConf.to_container(data))


class Run:
    """Envs, a policy that acts in them and a learner, in one process."""

    def __init__(self, **changes):
        torch.set_num_threads(1)
        self.cfg = make_cfg(**changes)
        self.env = get_env_cls("navigation")(self.cfg.env.train, ENVS)
        torch.manual_seed(0)
        policy = get_model(self.cfg.actor.model, describe_envs([self.env], []))
        torch.nn.init.normal_(policy.policy_head.head.weight, std=0.5)
        torch.nn.init.normal_(policy.value_head.head.weight, std=0.5)
        self.learner = EmbodiedLearner(self.cfg, policy, LearnerPlace(torch.device("cpu"), seed=3))
        self.acting = RolloutPolicy(
            copy.deepcopy(policy), torch.device("cpu"), [list(range(ENVS))], seed=5
        )
        self.acting.version = 0
        self.obs = self.env.reset()[0]

    def play(self) -> EmbodiedBatch:
        """One rollout, as env and rollout workers play it."""
        acting, env = self.acting, self.env
        acting.begin_rollout(CHUNKS)
        acting.begin_epoch()
        recorder = TrajectoryRecorder(bool(env.begins.all()))
        message = pack_observations(self.obs, begins=env.begins)
        for chunk in range(CHUNKS):
            actions = acting.act(0, message, 0, chunk, acting.steps + chunk)
            obs, rewards, terms, truncs, infos = env.chunk_step(actions)
            recorder.add(actions, rewards, terms, truncs, infos, True)
            self.obs = obs[-1]
            message = pack_observations(self.obs, infos[-1])
        acting.steps += CHUNKS
        return EmbodiedBatch.join([recorder.finish()], [acting.finish(0, message, CHUNKS)])


def test_sequences_are_successive_samples_of_one_env():
    sequences = SampleSequences(length=3, steps=6, envs=2)
    assert sequences.count == 4
    of_each = [sequences.samples(torch.tensor([s])).tolist() for s in range(4)]
    assert of_each == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]
    assert sequences.samples(torch.tensor([3, 0])).tolist() == [7, 0, 9, 2, 11, 4]
    assert [part.tolist() for part in sequences.split(torch.arange(4), 6)] == [[0, 1], [2, 3]]
    assert [len(part) for part in sequences.split(torch.arange(4), None)] == [4]
    assert [len(part) for part in sequences.split(torch.arange(4), 1)] == [1, 1, 1, 1]
    assert sequences.holding([0, 1]).tolist() == [0, 1]
    assert sequences.holding([2, 3]).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("micro", [None, 8])
def test_the_learner_agrees_with_the_rollout_also_in_the_middle_of_episodes(micro):
    run = Run(actor__micro_batch_size=micro)
    for _ in range(3):
        batch = run.play()
        assert torch.equal(batch.forward_inputs["begins"][1:], batch.begins[1:])
        numbers, _ = run.learner.agreement(batch)
        assert numbers["compared"] == 1.0
        assert max(value for key, value in numbers.items() if key != "compared") < 1e-5
    begins = batch.forward_inputs["begins"]
    assert not begins[0].all() and begins[1:].any(), "episodes go on, and begin"


def test_a_memory_that_was_not_reset_is_found():
    run = Run()
    run.play()
    batch = run.play()
    forgotten = batch.forward_inputs["begins"]
    assert forgotten[1:].any()
    forgotten[:] = False
    assert run.learner.agreement(batch)[0]["value_max"] > 1e-3


def test_values_of_ends_are_those_of_the_episode_that_ended():
    run = Run()
    batch = run.play()
    ended = (batch.terminations | batch.truncations).any(-1)
    values = batch.bootstrap_values.squeeze(-1)
    assert ended.any() and (values[ended] != 0).all() and not values[~ended].any()
    # With nothing remembered, the same observations would have had other values.
    other = Run()
    other.acting.memory.at_ends = lambda stage, rows: {}
    again = other.play().bootstrap_values.squeeze(-1)
    assert not torch.allclose(again[ended], values[ended], atol=1e-4)


def test_an_update_is_that_of_whole_sequences():
    """One minibatch of everything: the gradient is that of a loop over envs and sequences."""
    run = Run(algorithm__update_epoch=1)
    batch = run.play()
    learner, policy = run.learner, copy.deepcopy(run.learner.engine.model)
    learner.prepare(batch, range(ENVS))
    credit = learner._prepared[1]
    loss = 0.0
    for env in range(ENVS):
        for begin in range(0, CHUNKS, LENGTH):
            part = {k: v[begin : begin + LENGTH, env] for k, v in batch.forward_inputs.items()}
            logprobs, values = [], []
            memory = part["memory"][:1]
            for step in range(LENGTH):
                one = {key: value[step : step + 1] for key, value in part.items()}
                remembered = policy.network(
                    one["main_images"], one["words"], memory, one["begins"], 1
                )
                memory = remembered.memory
                own = policy.distribution(remembered.features)
                logprobs.append(own.log_prob(one["action"]))
                values.append(policy._values(remembered.features))
            new, value = torch.cat(logprobs).squeeze(-1), torch.cat(values).squeeze(-1)
            at = slice(begin, begin + LENGTH), env
            ratio = (new - batch.prev_logprobs[at].squeeze(-1)).exp()
            loss = loss - (ratio * credit.advantages[at].squeeze(-1)).sum()
            error = value - credit.returns[at].squeeze(-1)
            algorithm = run.cfg.algorithm
            delta = algorithm.huber_delta
            huber = torch.nn.functional.huber_loss(error, torch.zeros_like(error), delta=delta)
            loss = loss + algorithm.value_loss_coef * LENGTH * huber
    (loss / (ENVS * CHUNKS)).backward()
    found = {}
    learner.engine.step = lambda: found.update(
        {name: p.grad.clone() for name, p in learner.engine.model.named_parameters()}
    )
    learner.update()
    for name, parameter in policy.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_minibatches_hold_whole_sequences():
    run = Run(actor__global_batch_size=24, actor__micro_batch_size=8)
    batch = run.play()
    run.learner.prepare(batch, range(ENVS))
    metrics = run.learner.update()
    assert metrics["actor/updates"] == run.cfg.algorithm.update_epoch * ENVS * CHUNKS / 24
    assert abs(metrics["actor/approx_kl"]) < 1.0


def test_memory_is_saved_and_restored():
    run = Run()
    run.play()
    saved = copy.deepcopy(run.acting.memory.get_state())
    other = Run()
    assert other.acting.memory.set_state(saved)
    assert torch.equal(other.acting.memory.arguments(0)["memory"], saved[0]) and saved[0].any()
    assert not other.acting.memory.set_state([saved[0][:3]])


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("actor__model__sequence_length", 5, "12 chunks is not a whole number of sequences of 5"),
        ("actor__global_batch_size", 18, "global_batch_size 18 cannot be divided by"),
        ("actor__micro_batch_size", 6, "micro_batch_size 6 cannot be divided by"),
        ("algorithm__max_policy_age", 1, "must be 0: what a policy remembers"),
    ],
)
def test_what_does_not_fit_sequences_is_said_before_a_run(key, value, said):
    with pytest.raises(ConfigError) as error:
        make_cfg(**{key: value})
    assert said in str(error.value)


def test_a_rollout_of_another_length_is_refused():
    run = Run()
    batch = run.play()
    run.learner.engine.model._sequence_length = 5
    with pytest.raises(ValueError, match="not a whole number of sequences of 5"):
        run.learner.agreement(batch)
