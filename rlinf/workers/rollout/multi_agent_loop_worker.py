"""The rollout worker of episodes with several agents: a lead and its workers, over one engine."""

from __future__ import annotations

from rlinf.agents.team import TeamLoop
from rlinf.workers.rollout.agent_loop_worker import AgentLoopWorker


class MultiAgentLoopWorker(AgentLoopWorker):
    """Plays episodes in which agents of one set of weights work side by side.

    All agents of an episode ask the engine that has the episode, each with a context, limits and
    seeds of its own. The episode is complete when its lead is; what workers still generate then is
    ended.

    Args:
        cfg: checked configuration, with an `agentloop` section of a type that has several agents.
    """

    async def init_worker(self) -> None:
        """Build the loop, its tools and the engine.

        Raises:
            ValueError: `agentloop.type` is a loop of one agent.
        """
        await super().init_worker()
        if not isinstance(self._loop, TeamLoop):
            raise ValueError(
                f"agentloop.type is {self.cfg.agentloop.type}, a loop of one agent: use "
                "AgentLoopWorker, or a subclass of rlinf.agents.team.TeamLoop such as team"
            )
