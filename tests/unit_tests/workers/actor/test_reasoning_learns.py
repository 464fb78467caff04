"""GRPO from the first token to the last, in one process: the reward rises."""

import pytest
import torch

from rlinf.data.reasoning import Prompt, Sample, SampleGroup
from tests.unit_tests.workers.actor.reasoning import learn, make_cfg, make_learner

TOKENS, LENGTH = 10, 3


@torch.no_grad()
def respond(model, prompts, size, generator, version):
    """Samples responses one token after the other, with all of each sequence at every step."""
    rows = torch.tensor([p for p in prompts for _ in range(size)])
    tokens, logprobs = rows, []
    plain = model.plain
    attention = plain.config._attn_implementation
    plain.set_attn_implementation("sdpa")
    for _ in range(LENGTH):
        logp = plain(input_ids=tokens).logits[:, -1].log_softmax(-1)
        chosen = torch.multinomial(logp.exp(), 1, generator=generator)
        logprobs.append(logp.gather(1, chosen))
        tokens = torch.cat([tokens, chosen], 1)
    plain.set_attn_implementation(attention)
    logprobs = torch.cat(logprobs, 1)
    groups = []
    for number, prompt in enumerate(prompts):
        samples = []
        for i in range(size):
            response = tokens[number * size + i, len(prompt) :].tolist()
            samples.append(
                Sample(
                    prompt_index=number,
                    sample_index=i,
                    prompt_ids=list(prompt),
                    response_ids=response,
                    logprobs=logprobs[number * size + i].tolist(),
                    versions=[version] * LENGTH,
                    finish_reason="length",
                    # Repeat the second token of the prompt.
                    reward=sum(token == prompt[1] for token in response) / LENGTH,
                )
            )
        groups.append(SampleGroup(Prompt(number, list(prompt), "", None, "copy", {}), samples))
    return groups


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm.adv_type": "grpo", "algorithm.clip_ratio_high": 0.28},
        {"algorithm.adv_type": "reinpp", "algorithm.use_reinpp_baseline": True},
    ],
    ids=["grpo", "reinforce++"],
)
def test_the_reward_rises(changes):
    base = {
        "algorithm.group_size": 8,
        "algorithm.sampling_params": {"temperature": 1.0},
        "data.rollout_batch_size": 16,
        "actor.optim": {"lr": 5e-3, "weight_decay": 0.0},
    }
    learner = make_learner(make_cfg(base | changes))
    generator = torch.Generator().manual_seed(0)
    rewards, gaps = [], []
    for step in range(40):
        prompts = torch.randint(0, TOKENS, (16, 2), generator=generator).tolist()
        groups = respond(learner.engine.model, prompts, 8, generator, step)
        of_batch, of_update = learn(learner, groups)
        rewards.append(of_batch["rewards"])
        gaps.append(of_update["actor/rollout_gap_max"])
    assert sum(rewards[:3]) / 3 < 0.25
    assert sum(rewards[-3:]) / 3 > 0.6, rewards
    assert max(gaps) < 1e-4, "engine and trainer agree at every step"
