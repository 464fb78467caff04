"""Sessions of clients become the groups of steps, each once, and none that is too old."""

from __future__ import annotations

from rlinf.agents.calls import EngineCall
from rlinf.agents.serving.sessions import RewardedSession
from rlinf.agents.trajectory import Trajectory, Turn
from rlinf.workers.rollout.live_batches import LiveBatches, group_of_session


def session(name: str, version: int = 5, reward: float = 1.0) -> RewardedSession:
    first = EngineCall([1, 2], [3, 4], [-0.1, -0.2], [version] * 2, "stop", 0)
    second = EngineCall([1, 2, 3, 4, 9], [5], [-0.3], [version + 1], "stop", 1)
    turns = (Turn("user", "q"), Turn("assistant", "x"))
    return RewardedSession(name, Trajectory((first, second), turns, answer="x"), reward)


def test_a_session_is_a_group_with_its_reward_and_exact_tokens() -> None:
    group = group_of_session(session("s", reward=0.5), 17, step=3)
    (sample,) = group.samples
    assert group.key == 3 and group.prompt.index == 17 and group.episodes[0].score == 0.5
    assert sample.prompt_ids == [1, 2] and sample.response_ids == [3, 4, 9, 5]
    assert sample.loss_mask == [True, True, False, True] and sample.versions == [5, 5, 6, 6]


def test_steps_get_sessions_in_the_order_of_their_rewards() -> None:
    batches = LiveBatches(oldest=2)
    batches.order(0, 2, version=5)
    batches.order(1, 2, version=6)
    assert batches.take() == []
    for name in "abcde":
        batches.add(session(name))
    groups = batches.take()
    assert [group.key for group in groups] == [0, 0, 1, 1]
    assert [group.prompt.metadata["session"] for group in groups] == list("abcd")
    assert len({group.prompt.index for group in groups}) == 4
    assert batches.waiting == 1 and batches.rewarded == 5, "the fifth is for the next step"
    batches.order(2, 1, version=7)
    assert [group.key for group in batches.take()] == [2]


def test_the_first_sessions_of_each_step_are_shown() -> None:
    batches = LiveBatches(oldest=2)
    batches.order(0, 6, version=5)
    batches.order(1, 2, version=6)
    for name in "abcdefgh":
        batches.add(session(name))
    assert [group.shown for group in batches.take()] == [*[True] * 4, False, False, True, True]


def test_what_is_too_old_is_left_out_and_counted() -> None:
    batches = LiveBatches(oldest=2)
    for version in (1, 2, 3):
        batches.add(session(str(version), version))
    batches.order(9, 2, version=4)
    assert [group.prompt.metadata["session"] for group in batches.take()] == ["2", "3"]
    assert batches.too_old == 1


def test_more_than_can_be_trained_on_is_not_kept() -> None:
    batches = LiveBatches(oldest=2)
    batches.order(0, 2, version=5)
    for number in range(2):
        batches.add(session(str(number), reward=float(number)))
    batches.take()
    for number in range(20):
        batches.add(session(str(number)))
    assert batches.waiting == 8 and batches.crowded_out == 12 and batches.accepted == 21


def sampled(name: str, *reasons: str, first: int = 5) -> RewardedSession:
    """A session of answers that are not learnt from, for reasons; with an empty one they are."""
    calls, ids = [], [1, 2]
    for turn, reason in enumerate(reasons):
        version = 5 if turn else first
        made = EngineCall(ids, [3, 4], [-0.1] * 2, [version] * 2, "stop", turn, unlearnt=reason)
        calls.append(made)
        ids = [*made.token_ids, 9]
    return RewardedSession(name, Trajectory(tuple(calls), (Turn("user", "q"),)), 1.0)


def test_answers_that_were_drawn_otherwise_are_context() -> None:
    batches = LiveBatches(oldest=2)
    batches.order(0, 2, version=5)
    greedy = "temperature 0 instead of 1"
    batches.add(sampled("none", greedy, greedy))
    batches.add(sampled("some", "", greedy, ""))
    batches.add(sampled("all", ""))
    some, whole = batches.take()
    assert [group.prompt.metadata["session"] for group in (some, whole)] == ["some", "all"]
    (sample,) = some.samples
    assert sample.response_ids == [3, 4, 9, 3, 4, 9, 3, 4]
    assert sample.loss_mask == [True, True, *[False] * 4, True, True]
    assert batches.other_sampling == 3 and batches.unlearnt == 1 and batches.rewarded == 3
    assert batches.waiting == 0


def test_context_may_be_older_than_what_is_learnt_from() -> None:
    batches = LiveBatches(oldest=2)
    batches.order(0, 2, version=5)
    batches.add(sampled("context", "temperature 0 instead of 1", "", first=1))
    batches.add(sampled("learnt", "", "temperature 0 instead of 1", first=1))
    (group,) = batches.take()
    assert group.prompt.metadata["session"] == "context" and batches.too_old == 1
