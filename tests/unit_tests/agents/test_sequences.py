"""Every training sequence can be rebuilt from the log of engine calls, and the other way round."""

import math
import random

import pytest

from rlinf.agents.calls import EngineCall
from rlinf.agents.sequences import TokenSequence, sequences_of


def call(prompt, response, turn=0, agent=0, reason="stop"):
    logprobs = [-0.5 - turn - 0.01 * i for i in range(len(response))]
    versions = [turn // 2 + (i > 2) for i in range(len(response))]
    return EngineCall(prompt, response, logprobs, versions, reason, turn, agent)


def random_log(seed: int) -> list[EngineCall]:
    """Play an episode: conversations that go on, branch, are cut short, and begin anew.

    Few different tokens, so that unrelated conversations share prefixes by chance, too.
    """
    draw = random.Random(seed)
    vocabulary = draw.choice([2, 5, 50])

    def tokens(least, most):
        return [draw.randrange(vocabulary) for _ in range(draw.randint(least, most))]

    log: list[EngineCall] = []
    histories: list[list[int]] = [tokens(1, 4)]
    for turn in range(draw.randint(1, 12)):
        how = draw.random()
        history = draw.choice(histories)
        if how < 0.15:
            history = tokens(1, 4)
        elif how < 0.3:
            history = history[: draw.randint(1, len(history))]
        prompt = [*history, *tokens(0, 3)]
        reason = draw.choice(["stop", "stop", "length"])
        made = call(prompt, tokens(0, 5), turn, draw.randrange(3), reason)
        log.append(made)
        histories.append(list(made.token_ids))
    return log


def calls_in(sequence: TokenSequence) -> list[tuple]:
    """Read the calls back: what stands before a run of tokens that count is what was read."""
    whole, start = sequence.token_ids, len(sequence.prompt_ids)
    found = []
    for turn in dict.fromkeys(sequence.turns):
        places = [
            i
            for i, (of, counts) in enumerate(zip(sequence.turns, sequence.loss_mask, strict=True))
            if of == turn and counts
        ]
        if not places:
            continue
        first, last = places[0], places[-1]
        assert places == list(range(first, last + 1))
        found.append(
            (
                turn,
                tuple(whole[: start + first]),
                tuple(sequence.response_ids[first : last + 1]),
                tuple(sequence.logprobs[first : last + 1]),
                tuple(sequence.versions[first : last + 1]),
                set(sequence.agents[first : last + 1]),
            )
        )
    return found


@pytest.mark.parametrize("part", range(4))
def test_calls_can_be_rebuilt_from_sequences(part):
    for seed in range(part, 600, 4):
        check_rebuilt(random_log(seed))


def check_rebuilt(log):
    sequences = sequences_of(log)
    found = sorted(entry for sequence in sequences for entry in calls_in(sequence))
    expected = [
        (c.turn, c.prompt_ids, c.response_ids, c.logprobs, c.versions, {c.agent})
        for c in log
        if c.response_ids
    ]
    assert found == expected
    counted = sum(sum(sequence.loss_mask) for sequence in sequences)
    assert counted == sum(len(c.response_ids) for c in log)
    for sequence in sequences:
        count = len(sequence.response_ids)
        for name in ("logprobs", "versions", "loss_mask", "turns", "agents"):
            assert len(getattr(sequence, name)) == count, name
        others = [x for x, m in zip(sequence.logprobs, sequence.loss_mask, strict=True) if not m]
        assert not any(others)


def test_a_sequence_begins_only_where_no_other_could_go_on():
    for log in map(random_log, range(600)):
        ends: list[tuple[int, ...]] = []
        for made in log:
            fits = [end for end in ends if made.prompt_ids[: len(end)] == end]
            if fits:
                ends.remove(max(fits, key=len))
            ends.append(made.token_ids)
        assert sorted(ends) == sorted(tuple(s.token_ids) for s in sequences_of(log))


def test_turns_that_extend_one_another_are_one_sequence():
    log = [call([1, 2], [3, 4]), call([1, 2, 3, 4, 9, 9], [5], turn=1)]
    (sequence,) = sequences_of(log)
    assert sequence.prompt_ids == [1, 2]
    assert sequence.response_ids == [3, 4, 9, 9, 5]
    assert sequence.loss_mask == [True, True, False, False, True]
    assert sequence.turns == [0, 0, 1, 1, 1]
    assert sequence.logprobs == [*log[0].logprobs, 0.0, 0.0, *log[1].logprobs]


def test_a_branch_counts_only_what_it_wrote_itself():
    log = [
        call([1], [3]),
        call([1, 3, 8], [4], turn=1),
        call([1, 3, 9], [5, 6], turn=2, reason="length"),
    ]
    trunk, branch = sequences_of(log)
    assert trunk.response_ids == [3, 8, 4] and trunk.loss_mask == [True, False, True]
    assert branch.prompt_ids == [1, 3, 9] and branch.loss_mask == [True, True]
    assert (trunk.finish_reason, branch.finish_reason) == ("stop", "length")


def test_two_equal_answers_to_one_prompt_are_two_draws():
    first, second = sequences_of([call([1], [2]), call([1], [2], turn=1)])
    assert first.loss_mask == second.loss_mask == [True]


def test_history_that_was_written_anew_is_a_branch():
    # A template that drops what the model thought: the second prompt is not what it wrote.
    log = [call([1], [7, 7, 4]), call([1, 4, 9], [5], turn=1)]
    assert [s.loss_mask for s in sequences_of(log)] == [[True] * 3, [True]]


def test_log_probabilities_that_the_engine_does_not_give_are_nan():
    bare = [EngineCall([1], [2], [], [0], "stop"), EngineCall([1, 2, 3], [4], [], [0], "stop", 1)]
    (sequence,) = sequences_of(bare)
    assert [math.isnan(x) for x in sequence.logprobs] == [True, False, True]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([], [1], [0.0], [0], "stop"), "empty prompt"),
        (([1], [2], [0.0], [0], "abort"), "carry an aborted one on first"),
        (([1], [2, 3], [0.0], [0, 0], "stop"), "2 response tokens, 1 log-prob"),
        (([1], [2, 3], [], [0], "stop"), "1 versions"),
    ],
)
def test_a_call_that_cannot_be_is_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        EngineCall(*arguments)
