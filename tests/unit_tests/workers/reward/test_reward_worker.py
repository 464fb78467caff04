"""Groups stream through reward workers; a bad response costs itself and is counted."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from omegaconf import OmegaConf  # noqa: E402

from rlinf.config.schema.algorithm import ReasoningAlgorithmConfig  # noqa: E402
from rlinf.config.schema.reward import RewardConfig  # noqa: E402
from rlinf.data.reasoning import Prompt, Sample, SampleGroup  # noqa: E402
from rlinf.data.tokenizer import character_tokenizer  # noqa: E402
from rlinf.scheduler import Channel, FlexiblePlacementStrategy, WaitTimeout  # noqa: E402
from rlinf.workers.reward.reward_worker import RewardWorker  # noqa: E402

TOKENIZER = character_tokenizer()


def config(reward_type: str, algorithm=None, **reward):
    algorithm = ReasoningAlgorithmConfig(adv_type="grpo", loss_type="actor", **(algorithm or {}))
    tokenizer = {"tokenizer_model": "characters"}
    section = RewardConfig(reward_type=reward_type, tokenizer=tokenizer, **reward)
    return OmegaConf.create(
        {
            "runner": {"seq_length": 24},
            "algorithm": algorithm.model_dump(),
            "reward": section.model_dump(),
        }
    )


def group(
    index: int, answer: str, *responses: str, finish: str = "stop", validation: bool = False
) -> SampleGroup:
    prompt = Prompt(index, TOKENIZER.encode("1+1="), "1+1=", answer, "sums", {})
    samples = []
    for number, text in enumerate(responses):
        ids = [*TOKENIZER.encode(text), TOKENIZER.eos_token_id]
        zeros = [0] * len(ids)
        sample = Sample(index, number, prompt.token_ids, ids, zeros, zeros, finish)
        samples.append(sample)
    return SampleGroup(prompt, samples, validation=validation)


def launch(cluster, cfg, count: int = 1, name: str = "reward"):
    strategy = FlexiblePlacementStrategy([[i] for i in range(count)])
    workers = RewardWorker.create_group(cfg).launch(cluster, strategy, name=name)
    workers.init_worker().wait()
    return workers


@pytest.fixture
def obedient(monkeypatch):
    """Lets clusters that are made from now on know the reward `obedient`."""
    monkeypatch.setenv("RLINF_EXT_MODULE", "tests.unit_tests.workers.reward.rewards")


def test_bad_responses_cost_themselves_and_groups_overtake(obedient, cluster, tmp_path):
    cfg = config("obedient", timeout=100.0, num_processes=2, reward_scale=2.0, reward_max_val=1.5)
    workers = launch(cluster, cfg)
    groups, scored = Channel.create("groups"), Channel.create("scored")
    running = workers.compute_rewards(groups, scored)
    groups.put(group(0, str(tmp_path / "go on"), "wait", "1"))
    groups.put(group(1, "", "0.5", "1"))
    # As soon as it is scored, while the first one waits and the channel is open.
    first = scored.get(timeout=60)
    assert first.prompt.index == 1
    assert [sample.reward for sample in first.samples] == [1.0, 1.5]
    assert first.samples[0].reward_info == {"score": 0.5, "outcome": "ok", "length": 3.0}
    (tmp_path / "go on").touch()
    groups.put(group(2, "", "crash", "print", "words", "late", "0"))
    groups.put(None)
    (tally,) = running.wait()
    by_index = {item.prompt.index: item for item in (scored.get(), scored.get())}
    outcomes = [sample.reward_info["outcome"] for sample in by_index[2].samples]
    assert outcomes == ["crash", "output", "error", "timeout", "ok"]
    assert [sample.reward for sample in by_index[2].samples] == [0.0] * 5
    assert [sample.reward for sample in by_index[0].samples] == [0.0, 1.5]
    assert tally.counts == {"timeouts": 1, "crashes": 1, "errors": 1, "floods": 1}
    assert tally.groups == 3
    assert "could not convert string to float: 'words'" in tally.complaints["errors"]
    groups.put(group(3, "", "1", validation=True))
    verdicts = Channel.create("verdicts")
    (again,) = workers.compute_rewards(groups, scored, verdicts, num_groups=1).wait()
    verdict = verdicts.get(timeout=60)
    assert (verdict.index, verdict.rewards) == (3, [1.0]), "validation knows no scale"
    assert verdict.numbers == {"length": [1.0]} and verdict.failures == {}
    assert scored.empty(), "what is validated is not trained on"
    assert not any(again.counts.values())


def test_several_workers_share_a_channel_and_long_responses_are_punished(cluster):
    algorithm = {"overlong_buffer_length": 10, "overlong_penalty": 0.5}
    workers = launch(cluster, config("arithmetic", algorithm), count=2)
    groups, scored = Channel.create("groups"), Channel.create("scored")
    for index in range(20):
        groups.put(group(index, "2", "2", "1+1=2;2", "1+1=2;1+1=2;2", "3"))
    groups.close()
    tallies = workers.compute_rewards(groups, scored).wait()
    found = sorted((scored.get() for _ in range(20)), key=lambda item: item.prompt.index)
    assert [item.prompt.index for item in found] == list(range(20))
    for item in found:
        # A response may have 24 - 4 tokens; past 10 of them it loses.
        assert [s.reward for s in item.samples] == pytest.approx([1.0, 1.0, 1.0 - 0.2, 0.0])
        assert item.samples[2].reward_info["overlong"] == pytest.approx(-0.2)
        assert [s.reward_info["score"] for s in item.samples] == [1.0, 1.0, 1.0, 0.0]
    assert sum(tally.groups for tally in tallies) == 20


def test_dynamic_sampling_looks_at_what_is_right_and_not_at_the_length(cluster):
    algorithm = {"dynamic_sampling": True, "overlong_buffer_length": 10}
    workers = launch(cluster, config("arithmetic", algorithm), name="filter")
    groups, scored, verdicts = (Channel.create(name) for name in ("groups", "scored", "verdicts"))
    long = "1+1=2;1+1=2;"
    # All wrong, one of them too long; all right, one of them too long; one right.
    groups.put(group(0, "2", "3", "4", f"{long}3"))
    groups.put(group(1, "2", "2", "1+1=2;2", f"{long}2"))
    groups.put(group(2, "2", "3", "2", f"{long}3"))
    groups.close()
    workers.compute_rewards(groups, scored, verdicts).wait()
    found = {verdict.index: verdict for verdict in (verdicts.get() for _ in range(3))}
    assert len(set(found[0].rewards)) == 2 and set(found[0].scores) == {0.0}
    assert len(set(found[1].rewards)) == 2 and set(found[1].scores) == {1.0}
    assert scored.get().prompt.index == 2 and scored.empty()


def test_wrong_rewards_and_aborted_samples_are_errors(obedient, cluster):
    with pytest.raises(ValueError, match="'impossible' cannot be made: (.|\n)*not installed"):
        launch(cluster, config("impossible"), name="impossible")
    with pytest.raises(ValueError, match="did you mean 'math'"):
        launch(cluster, config("maths"), name="wrong")
    workers = launch(cluster, config("arithmetic"), name="right")
    groups, scored = Channel.create("groups"), Channel.create("scored")
    groups.put(group(5, "2", "2", finish="abort"))
    with pytest.raises(ValueError, match="sample 0 of prompt 5 was aborted"):
        workers.compute_rewards(groups, scored).wait()


def test_it_serves_after_a_pause_that_is_longer_than_the_deadline_of_channels(cluster):
    cluster.run.timeouts["channel"] = 0.2
    workers = launch(cluster, config("arithmetic"))
    groups, scored = Channel.create("groups"), Channel.create("scored")
    running = workers.compute_rewards(groups, scored)
    for index in range(2):
        groups.put(group(index, "2", "2"))
        assert scored.get(timeout=60).prompt.index == index
        for _ in range(2):
            # It has waited since it put what has come.
            with pytest.raises(WaitTimeout):
                scored.get()
    groups.close()
    (tally,) = running.wait()
    assert tally.groups == 2
