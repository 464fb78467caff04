"""Rewards that a loop or a tool gives to turns: where they are, and what is refused."""

import asyncio
import math

import pytest

pytest.importorskip("transformers")

from rlinf.agents.calls import EngineCall  # noqa: E402
from rlinf.agents.episode import Episode, Question, play  # noqa: E402
from rlinf.agents.loops import ToolLoop  # noqa: E402
from rlinf.agents.sequences import sequences_of  # noqa: E402
from rlinf.agents.tools.tool import Rewarded, Tool  # noqa: E402
from rlinf.agents.tools.toolbox import Toolbox  # noqa: E402
from rlinf.data.reasoning import GroupRequest, Prompt  # noqa: E402
from rlinf.data.token_batch import TokenBatch  # noqa: E402
from rlinf.workers.rollout.episode_samples import group_of_episodes  # noqa: E402
from tests.unit_tests.agents.test_loops import TOKENIZER, Engine, settings  # noqa: E402


def price(product: str) -> Rewarded:
    """Look a price up."""
    return Rewarded("7", 0.5 if product == "apple" else -0.25)


def played(*texts, box=None):
    box = box or Toolbox([Tool(price)])
    question = Question(tuple(TOKENIZER.encode("what is it? ")))
    episode = Episode(question, TOKENIZER, Engine(*texts), box, max_turns=5, max_total_tokens=500)
    return asyncio.run(play(ToolLoop(settings(), TOKENIZER, box).run, episode))


def test_a_tool_rewards_the_turn_that_called_it():
    made = played("<price>pear</price>", "<price>apple</price>", "7")
    assert made.rewards == {0: -0.25, 1: 0.5} and made.numbers["turn_rewards"] == 0.25
    (sequence,) = made.sequences()
    places = [place for place, reward in enumerate(sequence.rewards) if reward]
    assert [sequence.rewards[place] for place in places] == [-0.25, 0.5]
    for turn, place in enumerate(places):
        assert sequence.turns[place] == turn and sequence.loss_mask[place]
        assert not sequence.loss_mask[place + 1]
    seen = [(turn.turn, turn.reward) for turn in made.turns if turn.role == "assistant"]
    assert seen == [(0, -0.25), (1, 0.5), (2, 0.0)]
    assert [turn.text for turn in made.turns if turn.role == "tool"] == [
        "<information>7</information>"
    ] * 2


def test_rewards_reach_the_token_batch_with_turns_and_agents():
    made = played("<price>apple</price>", "7")
    request = GroupRequest(Prompt(3, [1], "", None, "test", {}), 1, 0)
    group = group_of_episodes(request, [made], "score")
    assert group.episodes[0].turns[0]["reward"] == 0.5 and group.episodes[0].ending == "done"
    for sample in group.samples:
        sample.reward = 1.0
    batch = TokenBatch.of([group])
    assert float(batch.turn_rewards.sum()) == 0.5 and set(batch.turns.tolist()) == {0, 1}
    assert set(batch.agents.tolist()) == {0}
    both = TokenBatch.join([batch, batch]).select(TokenBatch.of([group]).prompts * 0 + 1)
    assert both.turn_rewards.equal(batch.turn_rewards) and both.turns.equal(batch.turns)


def test_a_loop_rewards_the_last_turn_of_an_agent_or_any():
    async def ask(prompt_ids, limit, turn, agent):
        return EngineCall(prompt_ids, [5], [0.0], [0], "stop", turn, agent)

    async def run():
        episode = Episode(Question((1,)), TOKENIZER, ask, max_turns=9, max_total_tokens=50)
        for agent in (0, 1, 0):
            await episode.generate([1, 2], agent=agent)
        episode.reward(1.0)
        episode.reward(0.5, agent=1)
        episode.reward(0.25, turn=0)
        episode.reward(0.25, turn=0)
        return episode

    episode = asyncio.run(run())
    assert episode.finish().rewards == {2: 1.0, 1: 0.5, 0: 0.5}
    with pytest.raises(ValueError, match="agent 7 has no turn yet.*turns until now: .0, 1, 2."):
        episode.reward(1.0, agent=7)
    with pytest.raises(ValueError, match="there is no turn 9"):
        episode.reward(1.0, turn=9)
    with pytest.raises(ValueError, match="must be finite"):
        episode.reward(math.nan)


def test_a_turn_without_a_token_can_have_no_reward():
    call = EngineCall([1], [], [], [], "stop", turn=4)
    assert sequences_of([call])[0].rewards == []
    with pytest.raises(ValueError, match="turn 4 has the reward 1, but wrote no token"):
        sequences_of([call], {4: 1.0})
