"""From sessions that have their reward to the groups that a step trains on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rlinf.agents.calls import EngineCall
from rlinf.agents.serving.sessions import RewardedSession
from rlinf.data.reasoning import GroupRequest, Prompt, SampleGroup
from rlinf.data.shown_groups import is_shown
from rlinf.workers.rollout.episode_samples import group_of_episodes

_KEPT_BATCHES = 4
"""Batches of sessions that wait at most, beyond those that are ordered."""


@dataclass
class _Order:
    step: int
    count: int
    version: int
    given: int = 0


class LiveBatches:
    """Assigns sessions to steps, in the order in which they get their rewards.

    A session is a group of its own: nobody else was asked the same. What is rewarded while nobody
    waits for it is kept, and trained on later unless it has become too old by then. A session in
    which nothing can be learnt from is left out: its reward is that of another policy.

    Args:
        oldest: updates since the oldest token of a session when it is trained on, at most.

    Attributes:
        rewarded: sessions that came.
        accepted: those with a reward above 0.
        too_old: those that were left out for their age.
        crowded_out: those that were left out since more came than could be trained on.
        unlearnt: those that were left out since no answer in them can be learnt from.
        other_sampling: answers, of all sessions, that were drawn otherwise than the run draws, and
            so are not learnt from.
    """

    def __init__(self, oldest: int) -> None:
        self._oldest = oldest
        self._sessions: deque[tuple[int, RewardedSession]] = deque()
        self._orders: deque[_Order] = deque()
        self._batch = 1
        self.rewarded = self.accepted = self.too_old = self.crowded_out = 0
        self.unlearnt = self.other_sampling = 0

    @property
    def waiting(self) -> int:
        """Sessions that no step has taken."""
        return len(self._sessions)

    def add(self, session: RewardedSession) -> None:
        """Take a session."""
        left_out = unlearnt_calls(session)
        self.other_sampling += len(left_out)
        number, self.rewarded = self.rewarded, self.rewarded + 1
        self.accepted += session.reward > 0
        if len(left_out) == len(session.trajectory.calls):
            self.unlearnt += 1
            return
        self._sessions.append((number, session))
        while not self._orders and len(self._sessions) > _KEPT_BATCHES * self._batch:
            self._sessions.popleft()
            self.crowded_out += 1

    def order(self, step: int, count: int, version: int) -> None:
        """Ask for the sessions of a step; those of earlier steps come first.

        Args:
            step: the step.
            count: how many.
            version: of the weights that learn from them.
        """
        self._orders.append(_Order(step, count, version))
        self._batch = count

    def take(self) -> list[SampleGroup]:
        """Return the groups that steps wait for and that are there, under their steps."""
        groups = []
        while self._orders and self._sessions:
            order = self._orders[0]
            number, session = self._sessions.popleft()
            if order.version - _version(session) > self._oldest:
                self.too_old += 1
                continue
            group = group_of_session(session, number, order.step)
            group.shown = is_shown(order.given)
            groups.append(group)
            order.given += 1
            if order.given == order.count:
                self._orders.popleft()
        return groups


def unlearnt_calls(session: RewardedSession) -> list[EngineCall]:
    """Return the calls of a session that are not learnt from."""
    return [call for call in session.trajectory.calls if call.unlearnt]


def group_of_session(session: RewardedSession, number: int, step: int) -> SampleGroup:
    """Return a session as a group, whose reward is known.

    Args:
        session: what a client did.
        number: of the session; no other has it.
        step: that trains on it.
    """
    first = session.trajectory.calls[0]
    text = session.trajectory.turns[0].text if session.trajectory.turns else ""
    prompt = Prompt(number, list(first.prompt_ids), text, None, "live", {"session": session.name})
    group = group_of_episodes(GroupRequest(prompt, 1, step), [session.trajectory], "score")
    group.episodes[0].score = session.reward
    return group


def _version(session: RewardedSession) -> int:
    """Return the version of the oldest weights that wrote something to learn from."""
    learnt = (call for call in session.trajectory.calls if not call.unlearnt)
    return min((version for call in learnt for version in call.versions), default=0)
