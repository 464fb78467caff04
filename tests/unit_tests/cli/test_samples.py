"""One sample of a config, as the run would see it, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rlinf.cli import main
from rlinf.cli.check import inspect_config
from rlinf.cli.sample_parts import rounded
from rlinf.data.tokenizer import character_tokenizer
from rlinf.models import get_model
from rlinf.utils.env_spec import EnvSpec

CHAT = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
WITHOUT_ARITHMETIC = [f"~data.{key}" for key in ("digits", "held_out", "val_size")]


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    """Nothing may start or join a cluster."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a sample needs no cluster")

    monkeypatch.setattr("ray.init", refuse)


def sample(config: str | Path, *overrides: str) -> dict:
    """Return what `--json` would have, as programs read it."""
    report = inspect_config(str(config), list(overrides), sample=True, gpus_per_node=0)
    assert report["sample"] is not None, report["sample_lines"]
    return json.loads(json.dumps(report["sample"]))


def pieces(tokens: list[dict]) -> str:
    return "".join(token["piece"] for token in tokens)


# -- language -------------------------------------------------------------------------------------


def test_a_prompt_is_shown_with_tokens_mask_and_rewards(capsys):
    found = sample("arithmetic_grpo")
    assert found["text"] == pieces(found["tokens"])
    response = found["response"]
    assert pieces(response["tokens"]) == response["text"] + "<eos>"
    assert all(token["counts"] for token in response["tokens"])
    assert not any("counts" in token for token in found["tokens"])
    a, b = map(int, found["text"].rstrip("=").split("+"))
    assert found["answer"] == str(a + b)
    assert [reward["reward"] for reward in found["rewards"]] == [1.0, 0.0]
    assert found["notes"] == []
    assert main(["check", "arithmetic_grpo", "--no-memory", "--show-sample"]) == 0
    out = capsys.readouterr().out
    assert "3 '1'  2 '0'  12 '+'" in out and "0 '<eos>'*" in out
    assert "1 for the worked solution of the data" in out and "0 for an empty response" in out


def data(tmp_path: Path, *records: dict, answers: str = "searchr1") -> list[str]:
    """Overrides for a config with prompts of a file and a tokenizer with a chat template."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [
        *WITHOUT_ARITHMETIC,
        "data.type=files",
        f"data.train_data_paths=[{path}]",
        f"data.val_data_paths=[{path}]",
        "data.max_prompt_length=64",
        "runner.seq_length=128",
        "data.filter_prompt_by_length=true",
        "data.apply_chat_template=true",
        f"actor.tokenizer.tokenizer_model={tmp_path / 'tokenizer'}",
        "actor.model.hf_config.vocab_size=98",
        f"reward.reward_type={answers}",
        "actor.supervised.steps=0",
    ]


def test_a_worked_episode_is_shown_with_what_counts():
    found = sample("calculator_agent")
    response = found["response"]
    assert pieces(response["tokens"]) == response["text"] + "<eos>"
    read = [token for token in response["tokens"] if not token["counts"]]
    assert pieces(read) == f"<information>{found['answer']}</information>"
    assert [reward["reward"] for reward in found["rewards"]] == [1.0, 0.0]
    assert found["notes"] == []


def test_a_worked_episode_of_a_chat_is_shown_with_what_counts():
    found = sample("calculator_agent_chat")
    assert not any("<unk>" in token["piece"] for token in found["tokens"])
    response, said = found["response"], found["answer"]
    counts = pieces([token for token in response["tokens"] if token["counts"]])
    call, answer, _ = counts.split("<eos>")
    assert call.startswith('<tool_call>{"name":"calculator","arguments":{"expression":"')
    assert answer == f"<answer>{said}</answer>"
    read = pieces([token for token in response["tokens"] if not token["counts"]])
    assert read == (
        f"<|im_start|>user<tool_response>{said}</tool_response><eos><|im_start|>assistant"
    )
    assert [reward["reward"] for reward in found["rewards"]] == [1.0, 0.0]
    assert found["notes"] == []


def test_a_template_that_changes_earlier_turns_is_told_to_agents(tmp_path):
    drops = CHAT.replace("{{ m['content'] }}", "{{ m['content'].split('</think>')[-1] }}")
    keeps_the_last = drops.replace(
        "[{{ m['role'] }}] ",
        "[{{ m['role'] }}] {% if loop.last %}{{ m['content'].split('</think>')[0] }}{% endif %}",
    )
    for template, told in ((CHAT, 0), (keeps_the_last, 1)):
        words = character_tokenizer()
        words.chat_template = template
        words.save_pretrained(tmp_path / str(told))
        found = sample(
            "calculator_agent",
            "+data.apply_chat_template=true",
            "data.max_prompt_length=40",
            "runner.seq_length=400",
            "agentloop.max_total_tokens=400",
            "agentloop.parser=qwen",
            f"actor.tokenizer.tokenizer_model={tmp_path / str(told)}",
            "actor.model.hf_config.vocab_size=100",
        )
        about = [note for note in found["notes"] if "changes what came before" in note]
        assert len(about) == told, found["notes"]


def test_a_template_that_changes_earlier_turns_is_told_to_those_who_serve_clients(tmp_path):
    """Clients go on with messages of users, also without tools."""
    drops = CHAT.replace("{{ m['content'] }}", "{{ m['content'] if loop.last else '' }}")
    for template, told in ((CHAT, 0), (drops, 1)):
        words = character_tokenizer()
        words.chat_template = template
        words.save_pretrained(tmp_path / str(told))
        found = sample(
            "coding_online",
            "+data.apply_chat_template=true",
            "data.max_prompt_length=200",
            "runner.seq_length=400",
            f"actor.tokenizer.tokenizer_model={tmp_path / str(told)}",
            "actor.model.hf_config.vocab_size=100",
        )
        about = [note for note in found["notes"] if "changes what came before" in note]
        assert len(about) == told, found["notes"]
        assert all(note.endswith("each request is a sequence of its own") for note in about)


def test_a_chat_template_is_shown_as_it_renders(tmp_path):
    record = {"prompt": "Which city?", "answer": ["Paris", "paris"], "task": "capitals"}
    found = sample("arithmetic_grpo", *data(tmp_path, record), "data.system_prompt=Be brief.")
    assert found["prompt"] == "Which city?" and found["task"] == "capitals"
    assert found["text"] == "[system] Be brief.\n[user] Which city?\n[assistant] "
    assert pieces(found["tokens"]) == found["text"]
    # Of the forms that an answer may have, the one that this reward wants.
    assert found["response"]["is"] == "the reference answer in <answer>"
    assert found["response"]["text"] == "<answer>Paris</answer>"
    assert [reward["reward"] for reward in found["rewards"]] == [1.0, 0.0]


def test_rewards_are_those_that_are_trained_on(tmp_path):
    overrides = data(tmp_path, {"prompt": "Which city?", "answer": "Paris"})
    scale = ["reward.reward_scale=10", "reward.reward_min_val=-1", "reward.reward_max_val=5"]
    right, empty = sample("arithmetic_grpo", *overrides, *scale)["rewards"]
    assert (right["score"], right["reward"], empty["reward"]) == (1.0, 5.0, 0.0)


def test_a_reward_that_runs_apart_is_asked_there(tmp_path):
    pytest.importorskip("math_verify")
    overrides = data(tmp_path, {"prompt": "Half of one?", "answer": "\\frac{1}{2}"}, answers="math")
    found = sample("arithmetic_grpo", *overrides)
    assert "processes of its own" in found["reward_runs"]
    assert [reward["score"] for reward in found["rewards"]] == [1.0, 0.0]


def test_a_reward_that_does_not_fit_the_data_is_told(tmp_path, capsys):
    overrides = data(tmp_path, {"prompt": "1+1=", "answer": "2"})
    # Without the signs < and >, no tag can be written.
    plain = [
        "actor.tokenizer.tokenizer_model='characters:0123456789+=;'",
        "data.apply_chat_template=false",
    ]
    command = ["check", "arithmetic_grpo", *overrides, *plain, "--no-memory", "--show-sample"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "a response: the reference answer\n    2\n" in out
    assert "note: the right answer earns no more than an empty response" in out


def test_a_response_that_would_be_cut_is_told(tmp_path):
    overrides = data(tmp_path, {"prompt": "Where?", "answer": "far " * 20})
    found = sample("arithmetic_grpo", *overrides, "algorithm.sampling_params.max_new_tokens=16")
    assert any("16 tokens" in note for note in found["notes"])


def test_long_prompts_are_passed_over(tmp_path, capsys):
    records = [{"prompt": "x" * 200, "answer": "1"}, {"prompt": "short", "answer": "1"}]
    found = sample("arithmetic_grpo", *data(tmp_path, *records))
    assert found["record"] == 1 and any(note.endswith("64 tokens: 1") for note in found["notes"])
    overrides = data(tmp_path, records[0])
    command = ["check", "arithmetic_grpo", *overrides, "--no-memory", "--show-sample"]
    assert main(command) == 1
    assert "no sample: none of the first 1 prompts" in capsys.readouterr().out


def test_tests_of_programs_are_no_response(tmp_path):
    record = {"prompt": "Add.", "answer": {"inputs": ["1 2"], "outputs": ["3"]}}
    found = sample("arithmetic_grpo", *data(tmp_path, record))
    assert found["response"] is None


def test_without_the_model_there_is_no_sample(capsys):
    command = ["check", "smollm2_grpo", "actor.model.model_path=/no/such", "--no-memory"]
    assert main([*command, "--show-sample", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and report["sample"] is None


def test_a_program_of_ones_own_has_no_sample(capsys):
    assert main(["check", "worker_groups", "--show-sample"]) == 1
    assert "no sample: task type workers" in capsys.readouterr().out


# -- embodied -------------------------------------------------------------------------------------

PENDULUM = ["env.train.id=Pendulum-v1", "env.eval.id=Pendulum-v1"]


def test_a_step_of_an_env_is_shown(embodied, capsys):
    found = sample(embodied, *PENDULUM)
    states = found["observation"]["states"]
    assert states["shape"] == [3] and states["dtype"] == "float32"
    assert -1 <= states["least"] <= states["most"] <= 8
    assert found["policy_sees"] == {"states": states}
    assert found["normalizer"] == {"identity": True, "clip": 10.0}
    assert found["action_space"] == {"low": [-2.0], "high": [2.0], "choices": None}
    drawn, acted = found["action"]["policy"], found["action"]["env"]
    assert acted == [min(max(drawn[0], -2.0), 2.0)]
    (reward,) = found["step"]["rewards"]
    # Its worst: pi² + 0.1 · 8² + 0.001 · 2².
    assert -16.3 < reward <= 0 and found["step"]["success"] is None
    command = ["check", str(embodied), *PENDULUM, "--gpus-per-node", "0", "--no-memory"]
    assert main([*command, "--show-sample"]) == 0
    out = capsys.readouterr().out
    assert "action space: a number from -2 to 2" in out and "clipped to the env's range" in out
    assert "begin as 0 and 1" in out and f"reward {rounded(reward)}" in out


def test_the_same_config_gives_the_same_sample(embodied):
    assert sample(embodied, *PENDULUM) == sample(embodied, *PENDULUM)
    assert sample(embodied, *PENDULUM) != sample(embodied, *PENDULUM, "+runner.seed=7")


def test_squashed_actions_are_in_the_range(embodied):
    found = sample(embodied, *PENDULUM, "+actor.model.distribution=squashed_gaussian")
    drawn, acted = found["action"]["policy"], found["action"]["env"]
    assert acted == pytest.approx([2.0 * torch.tensor(drawn[0]).tanh().item()])
    assert "tanh" in found["action"]["becomes"]


def test_choices_and_chunks(embodied, capsys):
    found = sample(embodied, "+actor.model.num_action_chunks=4")
    assert found["action_space"]["choices"] == [2] and found["action"]["env"][0] in (0, 1)
    assert len(found["step"]["rewards"]) == 4
    command = ["check", str(embodied), "--gpus-per-node", "0", "--no-memory", "--show-sample"]
    assert main([*command, "+actor.model.num_action_chunks=4"]) == 0
    out = capsys.readouterr().out
    assert "a choice out of 2; the policy gives 4 at a time" in out
    assert "first 4 steps: rewards [1, 1, 1, 1]" in out


def test_statistics_that_come_with_weights_are_applied(embodied, tmp_path):
    spec = EnvSpec(obs_dim=3, action_dim=1, action_low=[-2.0], action_high=[2.0])
    policy = get_model({"model_type": "mlp_policy", "add_value_head": True}, spec)
    policy.update_normalizer({"states": torch.randn(100, 3) * 5 + 100})
    torch.save(policy.state_dict(), tmp_path / "weights.pt")
    found = sample(embodied, *PENDULUM, f"+runner.ckpt_path={tmp_path / 'weights.pt'}")
    assert found["normalizer"]["identity"] is False
    assert found["policy_sees"]["states"]["most"] == -10.0
    assert found["weights"].endswith("weights.pt")


def test_an_env_that_cannot_be_made_is_told(embodied, capsys):
    command = ["check", str(embodied), "--gpus-per-node", "0", "--no-memory", "--show-sample"]
    assert main([*command, "env.train.id=NoSuchEnv-v1"]) == 1
    assert "no sample: " in capsys.readouterr().out
