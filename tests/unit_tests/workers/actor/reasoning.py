"""A learner of responses and groups to feed it, without workers: what the tests share."""

from __future__ import annotations

import copy
from typing import Any

import torch

from rlinf.config import validate_cfg
from rlinf.data.reasoning import Prompt, Sample, SampleGroup
from rlinf.models import get_model
from rlinf.models.causal_lm.layout import Sequences
from rlinf.models.causal_lm.model import CausalLM
from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.reasoning_learner import ReasoningLearner

VOCABULARY = 13
MODEL: dict[str, Any] = {
    "model_type": "qwen3",
    "hf_config": {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    },
}
BASE: dict[str, Any] = {
    "cluster": {"component_placement": {"actor,rollout,reward": "0"}},
    "runner": {"task_type": "reasoning", "max_steps": 10, "seq_length": 32},
    "algorithm": {
        "adv_type": "grpo",
        "loss_type": "actor",
        "group_size": 4,
        "sampling_params": {"temperature": 0.8},
    },
    "data": {"max_prompt_length": 8, "rollout_batch_size": 4, "train_data_paths": ["none"]},
    "rollout": {},
    # A greater epsilon: where gradients are noise, Adam makes steps of noise.
    "actor": {"model": MODEL, "optim": {"lr": 1e-2, "weight_decay": 0.0, "adam_eps": 1e-3}},
    "reward": {"reward_type": "math"},
}
GAE = {
    "algorithm.adv_type": "gae",
    "algorithm.loss_type": "actor_critic",
    "actor.model.add_value_head": True,
}
CRITIC = {
    "algorithm.adv_type": "gae",
    "critic.use_critic_model": True,
    "critic.model": MODEL,
    "critic.optim": {"lr": 1e-2, "adam_eps": 1e-3},
}


def make_cfg(changes: dict[str, Any] | None = None) -> Any:
    """The base config with some keys, given by path, set to something else."""
    data = copy.deepcopy(BASE)
    for path, value in (changes or {}).items():
        *parents, key = path.split(".")
        section = data
        for parent in parents:
            section = section.setdefault(parent, {})
        section[key] = copy.deepcopy(value)
    return validate_cfg(data)


def make_model(section: Any, seed: int = 0) -> CausalLM:
    """A model with weights large enough that its answers differ."""
    torch.manual_seed(seed)
    model = get_model(section, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and ".lora_" not in name:
                parameter.mul_(3.0)
    return model


def make_learner(cfg: Any, with_critic: bool = True, **kwargs: Any) -> ReasoningLearner:
    """A learner on the CPU; what it says is in its list `said`."""
    torch.set_num_threads(1)
    said: list[str] = []
    critic = None
    if with_critic and cfg.critic is not None and cfg.critic.use_critic_model:
        critic = make_model(cfg.critic.model, seed=1)
        critic.add_value_head()
    learner = ReasoningLearner(
        cfg,
        make_model(cfg.actor.model),
        LearnerPlace(torch.device("cpu"), seed=3, warn=said.append, **kwargs),
        critic=critic,
    )
    learner.said = said
    return learner


def make_groups(
    model: CausalLM,
    seed: int = 0,
    count: int = 4,
    size: int = 4,
    version: int = 0,
    temperature: float = 0.8,
) -> list[SampleGroup]:
    """Random responses with the log-probabilities that a model gives them, and random rewards."""
    g = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=g))

    def tokens(length: int) -> list[int]:
        return torch.randint(0, VOCABULARY, (length,), generator=g).tolist()

    groups = []
    for number in range(count):
        prompt = Prompt(100 * seed + number, tokens(draw(1, 7)), "", None, "test", {})
        samples = [
            Sample(
                prompt_index=prompt.index,
                sample_index=i,
                prompt_ids=list(prompt.token_ids),
                response_ids=tokens(draw(1, 12)),
                logprobs=[],
                versions=[],
                finish_reason="length" if draw(0, 4) == 0 else "stop",
                reward=float(draw(0, 2)),
            )
            for i in range(size)
        ]
        groups.append(SampleGroup(prompt, samples))
    for group in groups:
        for sample in group.samples:
            length = len(sample.response_ids)
            with torch.no_grad():
                tokens = torch.tensor(sample.prompt_ids + sample.response_ids)
                lengths = torch.tensor([len(sample.prompt_ids)]), torch.tensor([length])
                out = model(Sequences(tokens, *lengths), temperature=temperature)
            sample.logprobs = out["logprobs"].tolist()
            sample.versions = [version] * length
    return groups


def uneven(groups: list[SampleGroup]) -> list[SampleGroup]:
    """The same with one response less in each group than in the one before, at least one."""
    for missing, group in enumerate(groups):
        group.samples = group.samples[: max(1, len(group.samples) - missing)]
    return groups


def learn(
    learner: ReasoningLearner, groups: list[SampleGroup]
) -> tuple[dict[str, float], dict[str, float]]:
    """One batch's credit and update; returns the metrics of both."""
    return learner.prepare(groups), learner.update()


def weights(learner: ReasoningLearner) -> dict[str, torch.Tensor]:
    """What is trained, whole."""
    tensors = {name: tensor.clone() for name, tensor in learner.engine.full_tensors()}
    if learner.critic is not None:
        of_critic = learner.critic.engine.full_tensors()
        tensors |= {f"critic.{name}": tensor.clone() for name, tensor in of_critic}
    return tensors


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The greatest difference of any weight."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)
