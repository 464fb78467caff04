"""Loops over environments of text, and over further attempts at one question."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf.agents.conversation import Conversation
from rlinf.agents.envs.text_env import make_text_env
from rlinf.agents.episode import Episode
from rlinf.agents.loops import AgentLoop, register_agent_loop
from rlinf.agents.tools.calling import in_thread, within
from rlinf.agents.tools.slots import Slots
from rlinf.agents.tools.tool import ToolFailed
from rlinf.agents.tools.toolbox import Toolbox
from rlinf.agents.trajectory import Trajectory


@register_agent_loop("env")
class EnvLoop(AgentLoop):
    """Plays in an environment, which gives the score of the episode: the sum of its rewards.

    The environment is called in threads, within `agentloop.tool_timeout`; one that fails costs the
    episode and not the run.

    Args:
        cfg: the `agentloop` section.
        tokenizer: of the model.
        tools: not used.
    """

    def __init__(self, cfg: Any, tokenizer: Any, tools: Toolbox) -> None:
        super().__init__(cfg, tokenizer, tools)
        options = cfg.env_options
        if isinstance(options, DictConfig):
            options = OmegaConf.to_container(options, resolve=True)
        self._options = options
        self._slots = Slots(cfg.env, cfg.tool_concurrency)
        make_text_env(cfg.env, self._options).close()

    async def run(self, episode: Episode) -> Trajectory:
        """See `AgentLoop.run`."""
        env = await self._call(make_text_env, self.cfg.env, self._options)
        talk = Conversation(episode, self.tokenizer)
        try:
            said = await self._call(env.reset, episode.question)
            episode.score = 0.0
            while True:
                call = await talk.answer(said)
                if call.finish_reason == "length":
                    return episode.finish("max_total_tokens")
                said, reward, done = self._checked(await self._call(env.step, episode.text(call)))
                episode.score += reward
                if done:
                    episode.note("user", said)
                    return episode.finish()
        finally:
            # What goes wrong here is the environment's own loss: the episode is what it is.
            with contextlib.suppress(ToolFailed):
                await self._call(env.close)

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await self._slots.take()
        if inspect.iscoroutinefunction(function):
            work: Any = function(*arguments)
        else:
            work = in_thread(lambda: function(*arguments))
        late = f"'{self.cfg.env}' did not answer within {self.cfg.tool_timeout:g} s"
        try:
            return await within(work, self._slots, self.cfg.tool_timeout, late)
        except ToolFailed:
            raise
        except Exception as error:
            raise ToolFailed(
                f"the environment '{self.cfg.env}' failed: {type(error).__name__}: {error}"
            ) from error

    def _checked(self, result: Any) -> tuple[str, float, bool]:
        """Return what `step` said, if it is what it may say."""
        if isinstance(result, tuple) and len(result) == 3:
            said, reward, done = result
            if isinstance(said, str) and isinstance(reward, int | float):
                return said[: self.cfg.max_tool_characters], float(reward), bool(done)
        raise ToolFailed(
            f"`step` of the environment '{self.cfg.env}' returned {str(result)[:80]!r}; it returns "
            "a text, a reward and whether the episode is over"
        )


@register_agent_loop("attempts")
class AttemptsLoop(AgentLoop):
    """Answers, is told by the reward of the run whether that is right, and tries again.

    So every reward and dataset of single answers, such as those of reasoning-gym, becomes an
    environment of several turns. `agentloop.max_turns` is the number of attempts.
    """

    judges = True

    async def run(self, episode: Episode) -> Trajectory:
        """See `AgentLoop.run`."""
        talk, said = Conversation(episode, self.tokenizer), ""
        episode.score = 0.0
        worth = 1.0
        while True:
            call = await talk.answer(said)
            if call.finish_reason == "length":
                return episode.finish("max_total_tokens")
            score = await episode.judge(episode.text(call))
            episode.score = max(episode.score, worth * score)
            if score >= self.cfg.right:
                return episode.finish()
            worth *= self.cfg.discount
            said = self.cfg.feedback
