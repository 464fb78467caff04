"""The worker of tools: calls them for episodes of other processes, and dies for nobody else."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from typing import Any, Literal

from rlinf.agents.tools.build import make_toolbox
from rlinf.agents.tools.toolbox import ToolCall, ToolFailed, ToolSession
from rlinf.config.plugins import load_extension
from rlinf.data.prompts import documents_of_run
from rlinf.scheduler import Worker

Outcome = Literal["answer", "error", "failed"]
_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 30.0
"""How long the event loop may stand still, beyond the longest deadline of a tool."""
EXIT_STUCK = 70
"""Exit code of a worker that ends itself because nothing works in it any more."""


class ToolWorker(Worker):
    """Calls tools, each for as long as its deadline says.

    A tool that ends the process costs the episodes whose calls were under way there; the worker is
    started anew. It also ends itself when calls that do not end hold all places of a tool, or when
    a tool blocks the event loop.

    Args:
        cfg: checked configuration.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        load_extension()
        self._box = make_toolbox(cfg.agentloop, documents=documents_of_run(cfg))
        self._box.prepare()
        self._patience = self._box.longest + _GRACE_SECONDS
        self._sessions: dict[str, ToolSession] = {}
        self._running = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = threading.Event()

    @classmethod
    def restart_policy(cls, cfg: Any) -> str | dict[str, int]:
        """Start a dead worker again, as often as the config says."""
        most = cfg.tools.max_restarts
        return {"on_failure": most} if most else "never"

    async def call_tool(
        self,
        session: str,
        name: str,
        arguments: Mapping[str, Any],
        known: bool,
        metadata: Mapping[str, Any],
    ) -> tuple[Outcome, str, float]:
        """Make one attempt at a call.

        Args:
            session: name of the episode.
            name: of the tool.
            arguments: of the call.
            known: whether this worker has opened something for the episode before.
            metadata: of the question, for tools with a state.

        Returns:
            What came of it, what the model reads or why the episode fails, and what the call was
            worth by itself.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            threading.Thread(target=self._watch, daemon=True, name="tool watch").start()
        opened = self._sessions.get(session)
        if name in self._box.stateful:
            if known and opened is None:
                lost = f"{self.get_name()} was started anew: what '{name}' had open is lost"
                return "failed", lost, 0.0
            opened = self._sessions.setdefault(session, opened or self._box.session(metadata))
        self._running += 1
        try:
            result = await (opened or self._box.session()).attempt(ToolCall(name, arguments))
            return ("error" if result.error else "answer"), result.text, result.reward
        except ToolFailed as error:
            return "failed", str(error), 0.0
        finally:
            self._running -= 1

    async def close_session(self, session: str) -> None:
        """Close what tools have opened for an episode."""
        found = self._sessions.pop(session, None)
        if found is not None:
            await found.close()

    async def ping(self) -> int:
        """Answer, with the number of calls under way."""
        return self._running

    def on_shutdown(self) -> None:
        """End the watch, and leave servers."""
        self._ended.set()
        self._box.close()

    def _watch(self) -> None:
        """End the process when nothing works in it any more; it is started anew."""
        turned = threading.Event()
        standing = 0.0
        while not self._ended.wait(_LOOK_SECONDS):
            assert self._loop is not None
            turned.clear()
            self._loop.call_soon_threadsafe(turned.set)
            standing = 0.0 if turned.wait(_LOOK_SECONDS) else standing + 2 * _LOOK_SECONDS
            if standing > self._patience:
                self._leave(f"a tool has blocked the event loop for {standing:g} s; make it plain")
            if self._box.stuck and not self._running:
                self._leave("all places of a tool are held by calls that do not end")

    def _leave(self, why: str) -> None:
        self.log_error(f"{why}: this worker ends, to be started anew")
        os._exit(EXIT_STUCK)
