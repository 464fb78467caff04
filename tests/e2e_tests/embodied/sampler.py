"""A start sampler of one's own, which the workers of the tests know."""

from __future__ import annotations

from rlinf.envs.start_samplers import register_start_sampler
from rlinf.envs.start_samplers.base import StartSampler


class LeastReturn(StartSampler):
    """Weighs a task by the inverse of the returns that it has brought so far."""

    def __init__(self, cfg, tasks):
        super().__init__(cfg, tasks)
        self.totals = [0.0] * len(tasks)

    def weights(self):
        return [1 / (1 + total) for total in self.totals]

    def observe(self, outcomes):
        for outcome in outcomes:
            self.totals[outcome.task] += outcome.ret

    def get_state(self):
        return {"totals": self.totals}

    def set_state(self, state):
        self.totals = list(state["totals"])


register_start_sampler("least_return", LeastReturn, replaces=True)
