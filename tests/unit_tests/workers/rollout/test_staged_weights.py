"""Weights that arrive while a policy acts: taken whole, or not at all."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from rlinf.workers.rollout.staged_weights import StagedWeights


class Sender:
    """Writes a number into each weight, and waits in the middle if told to."""

    def __init__(self, version: int, fails: bool = False):
        self.version, self.fails = version, fails
        self.half, self.goes_on = threading.Event(), threading.Event()

    def receive(self, model: nn.Module) -> int:
        first, *rest = model.state_dict().values()
        first.fill_(self.version)
        self.half.set()
        assert self.goes_on.wait(60)
        if self.fails:
            raise ConnectionError("the rest never came")
        for tensor in rest:
            tensor.fill_(self.version)
        return self.version


def policy() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    for tensor in model.state_dict().values():
        tensor.fill_(0)
    return model


def numbers(model: nn.Module) -> set[float]:
    return {float(x) for tensor in model.state_dict().values() for x in tensor.flatten()}


def arrive(staged: StagedWeights, version: int) -> None:
    sender = Sender(version)
    sender.goes_on.set()
    assert staged.receive(sender) == version


def take(staged: StagedWeights, wait: bool) -> int | None:
    return staged.take(wait, before=lambda: None)


def test_what_has_arrived_is_taken_once():
    model = policy()
    staged = StagedWeights(model)
    assert take(staged, wait=False) is None
    arrive(staged, 1)
    assert numbers(model) == {0.0}, "only who acts changes the policy"
    assert take(staged, wait=False) == 1 and numbers(model) == {1.0}
    assert take(staged, wait=True) is None
    arrive(staged, 2)
    arrive(staged, 3)
    assert take(staged, wait=False) == 3 and numbers(model) == {3.0}


def test_who_acts_is_told_before_the_weights_change():
    model, seen = policy(), []
    staged = StagedWeights(model)
    staged.take(True, before=lambda: seen.append(numbers(model)))
    assert seen == [], "nothing has arrived"
    arrive(staged, 1)
    staged.take(True, before=lambda: seen.append(numbers(model)))
    assert seen == [{0.0}] and numbers(model) == {1.0}


def test_what_is_on_its_way_is_waited_for_or_not():
    model = policy()
    staged, sender = StagedWeights(model), Sender(2)
    arrive(staged, 1)
    thread = threading.Thread(target=staged.receive, args=(sender,))
    thread.start()
    assert sender.half.wait(60)
    # Version 1 is being overwritten: neither it nor half of the next one is taken.
    assert take(staged, wait=False) is None and numbers(model) == {0.0}
    sender.goes_on.set()
    taken = take(staged, wait=True)
    thread.join()
    assert taken == 2 and numbers(model) == {2.0}


def test_half_of_the_weights_is_never_taken():
    model = policy()
    staged, sender = StagedWeights(model), Sender(2, fails=True)
    arrive(staged, 1)
    sender.goes_on.set()
    with pytest.raises(ConnectionError):
        staged.receive(sender)
    assert take(staged, wait=True) is None and numbers(model) == {0.0}
    arrive(staged, 3)
    assert take(staged, wait=True) == 3 and numbers(model) == {3.0}


def test_the_copy_is_one_of_its_own():
    model = policy()
    staged = StagedWeights(model)
    with torch.no_grad():
        model[0].weight.fill_(5)
    arrive(staged, 1)
    assert float(model[0].weight[0, 0]) == 5.0
