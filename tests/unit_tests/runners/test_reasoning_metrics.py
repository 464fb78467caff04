"""Numbers of scored groups."""

from __future__ import annotations

from dataclasses import replace

from rlinf.data.reasoning import Prompt, Sample, SampleGroup, Verdict
from rlinf.runners.reasoning_metrics import of_validation, of_verdicts, sentence


def verdict(index: int, *infos: dict, task: str = "sums") -> Verdict:
    samples = [
        Sample(index, number, [1], [2, 3], [0.0] * 2, [0] * 2, "stop", info["score"], info)
        for number, info in enumerate(infos)
    ]
    return Verdict.of(SampleGroup(Prompt(index, [1], "1+1=", "2", task, {}), samples), "2")


VERDICTS = [
    verdict(0, {"score": 1.0, "outcome": "ok", "words": 3}, {"score": 0.0, "outcome": "timeout"}),
    verdict(1, {"score": 0.0, "outcome": "ok", "words": 5}, {"score": 0.0, "outcome": "crash"}),
]


def test_what_a_reward_says_beside_the_score_is_a_metric():
    found = of_verdicts(VERDICTS, seconds=2.0)
    assert found["rollout/score"] == 0.25 and found["rollout/tokens_per_second"] == 4.0
    assert {name: value for name, value in found.items() if name.startswith("reward/")} == {
        "reward/words": 4.0,
        "reward/failures/timeout": 1.0,
        "reward/failures/crash": 1.0,
    }


def test_a_task_without_an_episode_that_counts_has_no_score():
    empty = replace(verdict(2, {"score": 1.0}, task="others"), scores=[])
    found = of_verdicts([*VERDICTS, empty], seconds=2.0)
    assert found["rollout/sums/score"] == 0.25 and "rollout/others/score" not in found


def test_a_validation_tells_it_as_well():
    found = of_validation(VERDICTS)
    assert found["eval/pass@1"] == 0.25 and found["eval/reward/words"] == 4.0


def test_there_is_one_name_for_each_thing():
    """Several tasks have names of their own; what is learned from is the learner's to tell."""
    other = verdict(2, {"score": 1.0, "outcome": "ok"}, {"score": 1.0, "outcome": "ok"}, task="b")
    scores = {name for name in of_verdicts(VERDICTS, seconds=1.0) if "score" in name}
    assert scores == {"rollout/score"}
    found = of_verdicts([*VERDICTS, other], seconds=1.0)
    assert found["rollout/b/score"] == 1.0 and found["rollout/sums/score"] == 0.25
    assert not any(name.startswith("rollout/reward") for name in found)
    assert of_validation([*VERDICTS, other])["eval/b/pass@1"] == 1.0


def test_a_validation_in_a_sentence():
    assert sentence(of_validation(VERDICTS)).startswith("evaluated pass@1 25.0% over 2 prompts (95")


def test_tasks_in_a_sentence():
    easy = verdict(2, {"score": 1.0}, {"score": 1.0}, task="easy")
    said = sentence(of_validation([*VERDICTS, easy]))
    assert said.endswith("; sums 25.0%, easy 100.0%"), "the hardest first"
    many = [verdict(n, {"score": float(n > 1)}, task=f"t{n}") for n in range(9)]
    hardest = "t0 0.0%, t1 0.0%, t2 100.0%, t3 100.0%, t4 100.0%"
    assert sentence(of_validation(many)).endswith(f"; of 9 tasks the hardest: {hardest}")
    assert "tasks" not in sentence(of_validation(VERDICTS))
