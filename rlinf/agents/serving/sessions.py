"""Sessions of clients: the log of their engine calls, until a reward makes a trajectory of it."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rlinf.agents.calls import EngineCall
from rlinf.agents.sequences import token_numbers
from rlinf.agents.serving.errors import ApiError
from rlinf.agents.trajectory import Trajectory, Turn

HEADER = "X-RLinf-Session"
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
MOST_TOKENS = 1_000_000
"""Tokens that are kept of a session unless something else is said."""
_REMEMBERED = 65536
"""Sessions that have ended and whose names are known."""


@dataclass
class Session:
    """What one client does under one name.

    Attributes:
        name: Its name.
        calls: Of the engine, as they were complete.
        turns: What was read and written, as text.
        answer: The latest text of the model.
        tokens: Of all calls together, prompts included.
        running: Calls under way.
        aborted: Calls that ended before their response did; they are no part of the log.
        used: When it was used last.
    """

    name: str
    calls: list[EngineCall] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    answer: str = ""
    tokens: int = 0
    running: int = 0
    aborted: int = 0
    used: float = field(default_factory=time.monotonic)

    def add(self, read: Sequence[Turn], call: EngineCall, answer: str) -> None:
        """Append a call to the log.

        Args:
            read: What the model has read since its latest answer.
            call: Of the engine; its turn is the number of calls before it.
            answer: What the model wrote.
        """
        self.calls.append(call)
        self.tokens += len(call.prompt_ids) + len(call.response_ids)
        self.turns += [*read, Turn("assistant", answer, turn=call.turn)]
        self.answer = answer

    def trajectory(self) -> Trajectory:
        """Return what came of it."""
        counts = {"turns": len(self.calls), "aborted": self.aborted, **token_numbers(self.calls)}
        numbers = {name: float(value) for name, value in counts.items()}
        return Trajectory(tuple(self.calls), tuple(self.turns), "done", self.answer, numbers)


@dataclass(frozen=True)
class RewardedSession:
    """A session that has ended.

    Attributes:
        name: Its name.
        trajectory: What it did.
        reward: What that was worth to its client.
    """

    name: str
    trajectory: Trajectory
    reward: float


class Sessions:
    """All sessions of an endpoint.

    Args:
        on_reward: Gets each session that has its reward.
        most: Sessions without a reward at a time.
        idle_seconds: A session that nobody uses for so long is dropped.
        most_tokens: Of the calls of a session; one that has more takes no further requests.
    """

    def __init__(
        self,
        on_reward: Callable[[RewardedSession], None] = lambda session: None,
        most: int = 10_000,
        idle_seconds: float = 3600.0,
        most_tokens: int = MOST_TOKENS,
    ) -> None:
        self._on_reward = on_reward
        self._most, self._idle, self._most_tokens = most, idle_seconds, most_tokens
        self._open: OrderedDict[str, Session] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self.expired = 0

    def __len__(self) -> int:
        return len(self._open)

    def use(self, name: str | None) -> Session | None:
        """Return the session of a request, a new one if there is none; None without a name."""
        if name is None:
            return None
        _check_name(name)
        if name in self._ended:
            raise ApiError(
                f"session {name} has ended with its reward; begin another one",
                status=409,
                code="session_ended",
            )
        self._expire()
        session = self._open.get(name)
        if session is None:
            if len(self._open) >= self._most:
                raise ApiError(
                    f"{self._most} sessions wait for their reward, which is the most; send rewards "
                    "for some, or leave them unused until they expire",
                    status=429,
                    kind="rate_limit_error",
                    code="too_many_sessions",
                )
            session = self._open[name] = Session(name)
        if session.tokens >= self._most_tokens:
            raise ApiError(
                f"session {name} has {session.tokens} tokens of prompts and answers, and "
                f"{self._most_tokens} is the most; send its reward, and begin another one",
                status=409,
                code="session_full",
            )
        session.used = time.monotonic()
        self._open.move_to_end(name)
        return session

    def drop_unused(self, session: Session | None) -> None:
        """Forget a session whose only request was refused."""
        if session is not None and not session.calls and not session.running:
            self._open.pop(session.name, None)

    def get(self, name: str) -> Session:
        """Return a session that is there."""
        _check_name(name)
        session = self._open.get(name)
        if session is None:
            ended = name in self._ended
            raise ApiError(
                f"session {name} has its reward already"
                if ended
                else f"there is no session {name}: send the header {HEADER} with its requests",
                status=409 if ended else 404,
                code="session_ended" if ended else "session_not_found",
            )
        return session

    def reward(self, name: str, reward: float) -> RewardedSession:
        """End a session with its reward."""
        session = self.get(name)
        if session.running:
            raise ApiError(
                f"session {name} has {session.running} requests under way; send the reward when "
                "they have their answer",
                status=409,
                code="session_busy",
            )
        if not session.calls:
            raise ApiError(
                f"session {name} has no complete answer that could be rewarded",
                status=409,
                code="session_empty",
            )
        ended = RewardedSession(name, session.trajectory(), reward)
        # If this fails, the client may send its reward again.
        self._on_reward(ended)
        del self._open[name]
        self._ended[name] = None
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        return ended

    def _expire(self) -> None:
        before = time.monotonic() - self._idle
        while self._open:
            oldest = next(iter(self._open.values()))
            if oldest.used >= before or oldest.running:
                return
            del self._open[oldest.name]
            self.expired += 1


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ApiError(
            f"{HEADER} is {name[:80]!r}: 1 to 128 letters, digits and . _ : - are allowed",
            param=HEADER,
        )
