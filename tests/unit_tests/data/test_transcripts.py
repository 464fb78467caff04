"""What a reader sees of an episode is what the engine read and wrote, and what the loss counts."""

from dataclasses import replace

import pytest

pytest.importorskip("transformers")

from rlinf.data.reasoning import (  # noqa: E402
    EpisodeRecord,
    GroupRequest,
    Prompt,
    Sample,
    SampleGroup,
)
from rlinf.data.tokenizer import load_tokenizer  # noqa: E402
from rlinf.data.transcripts import transcript_of  # noqa: E402
from rlinf.workers.rollout.episode_samples import group_of_episodes  # noqa: E402
from tests.unit_tests.agents.test_loops import TOKENIZER  # noqa: E402
from tests.unit_tests.agents.test_team import run as run_team  # noqa: E402
from tests.unit_tests.agents.test_team import team  # noqa: E402
from tests.unit_tests.agents.test_turn_rewards import played  # noqa: E402


def scored(trajectory, overlong="score", validation=False):
    request = GroupRequest(Prompt(3, [1], "", None, "test", {}), 1, 0, validation)
    group = group_of_episodes(request, [trajectory], overlong)
    for sample in group.samples:
        sample.reward, sample.reward_info = 2.0, {"score": 1.0}
    return group


def test_turns_of_an_episode_with_calls_answers_and_rewards():
    made = played("<price>apple</price>", "7")
    told = transcript_of(scored(made), TOKENIZER.decode)
    (parts,) = told.sequences
    assert [(part["role"], part["written"]) for part in parts] == [
        ("prompt", False),
        ("model", True),
        ("tool", False),
        ("model", True),
    ]
    texts = [TOKENIZER.encode(part["text"], add_special_tokens=False) for part in parts]
    (sequence,) = made.sequences()
    assert [token for ids in texts for token in ids] == sequence.token_ids
    assert [part["tokens"] for part in parts] == list(map(len, texts))
    assert sum(part["tokens"] for part in parts if part["written"]) == sum(sequence.loss_mask)
    assert parts[1]["calls"] == [{"name": "price", "arguments": {"product": "apple"}}]
    assert parts[1]["reward"] == 0.5 and parts[3]["reward"] == 0.0
    assert not parts[2]["error"] and (told.score, told.reward) == (1.0, 2.0)
    assert parts[1]["learnt"] and parts[3]["learnt"]


def test_an_answer_that_tells_of_a_mistake_says_so():
    told = transcript_of(scored(played("<price>apple", "7")), TOKENIZER.decode)
    first, read = told.sequences[0][1:3]
    assert first["calls"] == [{"problem": "a <price> has no </price>"}]
    assert read["error"] and read["role"] == "tool"


def test_each_agent_of_a_team_has_its_conversation():
    told = transcript_of(scored(run_team(team)[0]), TOKENIZER.decode)
    assert [{part["agent"] for part in parts} for parts in told.sequences] == [{0}, {1}, {2}]
    lead, worker, _ = told.sequences
    assert [call["name"] for call in lead[1]["calls"]] == ["task", "task"]
    assert [call["name"] for call in worker[1]["calls"]] == ["lookup"]
    turns = [part["turn"] for parts in told.sequences for part in parts if part["written"]]
    assert sorted(turns) == list(range(8)), "each turn once"


def test_what_does_not_count_is_not_learnt():
    made = played(*["<price>apple</price>"] * 6)
    assert made.ending == "max_turns"
    for group, reasons, learnt in (
        (scored(made, validation=True), [], False),
        (scored(made), ["cut"], False),
        (scored(made), [""], True),
    ):
        told = transcript_of(group, TOKENIZER.decode, reasons)
        parts = [part for part in told.sequences[0] if part["written"]]
        assert told.ending == "max_turns" and {part["learnt"] for part in parts} == {learnt}


def test_a_reason_is_that_of_its_sequence():
    group = scored(run_team(team)[0])
    reasons = ["cut" if sample.agents[0] == 1 else "" for sample in group.samples]
    told = transcript_of(group, TOKENIZER.decode, reasons)
    found = [{part["learnt"] for part in parts if part["written"]} for parts in told.sequences]
    assert found == [{True}, {False}, {True}]


def test_spaces_that_a_tokenizer_loses_are_shown_where_they_are_known():
    tokenizer = load_tokenizer("words:<unk> where is the red lamp = <answer> </answer>")
    question = "where is the red lamp ="
    sample = Sample(0, 0, tokenizer.encode(question), [2], [0.0], [0], "stop", reward=1.0)
    sample.reward_info, sample.trajectory = {"score": 1.0}, 0
    prompt = Prompt(0, list(sample.prompt_ids), question, None, "test", {})
    group = SampleGroup(prompt, [sample], episodes=[EpisodeRecord("")])
    assert tokenizer.decode(sample.prompt_ids) == "whereistheredlamp="
    assert transcript_of(group, tokenizer.decode).sequences[0][0]["text"] == question


def test_a_response_of_one_turn_has_none():
    sample = Sample(0, 0, [1], [2], [0.0], [0], "stop", reward=1.0, reward_info={"score": 1.0})
    group = SampleGroup(Prompt(0, [1], "", None, "test", {}), [sample])
    assert transcript_of(group, TOKENIZER.decode) is None


def test_what_the_model_wrote_and_does_not_learn_is_shown_as_read():
    made = played("<price>apple</price>", "7")
    first = replace(made.calls[0], unlearnt="temperature 0 instead of 1")
    told = transcript_of(scored(replace(made, calls=(first, made.calls[1]))), TOKENIZER.decode)
    (parts,) = told.sequences
    assert [(part["role"], part["written"]) for part in parts] == [
        ("prompt", False),
        ("assistant", False),
        ("tool", False),
        ("model", True),
    ]
    assert parts[1]["text"] == "<price>apple</price><eos>"
