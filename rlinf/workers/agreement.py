"""What a policy acted with, as evidence for when rollout and learner disagree.

The rollout worker notes checksums of the inputs it saw, for a few steps of each rollout, and gives
them out with the checksums of its weights when it is asked. The learner holds its own beside them
and says which part differs: weights, normaliser, inputs or number format. If none does, the same
numbers were put in and others came out: it is the computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rlinf.hybrid_engines.weight_sync.checksum import checksum, checksums_of_rows

PARTS = ("weights", "normaliser", "inputs", "dtype", "computation")
"""What may differ, in the order in which it is looked for."""

Place = tuple[int, ...]
"""Which sample it is; of a rollout of envs (epoch, chunk step, number of the env)."""

_STEPS = 4
_MODULUS = 1 << 64


def sampled_steps(count: int) -> list[int]:
    """Return which of `count` chunk steps are compared: first, last and some between."""
    if count <= _STEPS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (_STEPS - 1)) for i in range(_STEPS)})


def name_of_step(place: Place) -> str:
    """Say in words which sample of a rollout of envs it is."""
    epoch, step, env = place
    return f"env {env} in chunk step {step} of epoch {epoch}"


@dataclass(frozen=True)
class Evidence:
    """What one rollout worker computed with.

    Attributes:
        worker: its name.
        version: of its weights; -1 if none have arrived.
        tensors: number format and checksum of each weight and buffer.
        buffers: which of them are not trained, such as the statistics of a normaliser.
        inputs: checksums of what the policy saw, by place and name.
        hidden: what it cannot show, and why, in words; then it has no tensors.
        stated: number formats of weights that it cannot show.
    """

    worker: str
    version: int
    tensors: dict[str, tuple[torch.dtype, int]]
    buffers: frozenset[str] = frozenset()
    inputs: dict[Place, dict[str, int]] = field(default_factory=dict)
    hidden: str = ""
    stated: frozenset[torch.dtype] = frozenset()

    @classmethod
    def of(
        cls, worker: str, version: int, model: nn.Module, inputs: dict[Place, dict[str, int]]
    ) -> Evidence:
        """Take the checksums of a model."""
        tensors = model.state_dict()
        trained = {name for name, _ in model.named_parameters()}
        buffers = frozenset(tensors) - trained
        return cls(worker, version, checksums_of(tensors.items()), buffers, inputs)

    @property
    def formats(self) -> set[torch.dtype]:
        """Number formats of the weights."""
        if self.hidden:
            return set(self.stated)
        own = {dtype for name, (dtype, _) in self.tensors.items() if name not in self.buffers}
        return {dtype for dtype in own if dtype.is_floating_point}


def checksums_of(
    tensors: Iterable[tuple[str, Tensor]],
) -> dict[str, tuple[torch.dtype, int]]:
    """Return the number format and checksum of each tensor."""
    return {name: (tensor.dtype, checksum(tensor)) for name, tensor in tensors}


@dataclass(frozen=True)
class Finding:
    """Something that differs.

    Attributes:
        part: one of `PARTS`.
        text: what of it, in words.
    """

    part: str
    text: str


class SeenInputs:
    """Notes what the policy saw in the sampled steps of a rollout, before anybody can change it."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, int, Sequence[int], dict[str, Tensor]]] = []

    def clear(self) -> None:
        """A new rollout begins."""
        self._seen = []

    def note(
        self, epoch: int, step: int, env_ids: Sequence[int], inputs: Mapping[str, Tensor]
    ) -> None:
        """Keep the checksums of a step.

        Args:
            epoch: of the rollout.
            step: chunk step.
            env_ids: number of each row's env in the whole run, `[B]`.
            inputs: what the policy saw, `[B, ...]` each.
        """
        sums = {key: checksums_of_rows(value) for key, value in inputs.items()}
        self._seen.append((epoch, step, env_ids, sums))

    def table(self) -> dict[Place, dict[str, int]]:
        """Return the checksums by place and name."""
        return {
            (epoch, step, env): {key: int(numbers[row]) for key, numbers in sums.items()}
            for epoch, step, env_ids, sums in self._seen
            for row, env in enumerate(env_ids)
        }


def compare_tensors(
    own: Iterable[tuple[str, Tensor]], version: int, others: Sequence[Evidence]
) -> list[Finding]:
    """Hold the learner's weights and buffers beside those of rollout workers.

    Args:
        own: all of the learner's tensors, whole; read to the end.
        version: of the learner's weights.
        others: what rollout workers computed with. One that has other weights by now is left out,
            and one that cannot show its own.
    """
    others = [each for each in others if each.version == version and not each.hidden]
    wrong: dict[tuple[str, str], list[str]] = {}
    names = set()
    for name, tensor in own:
        names.add(name)
        sums: dict[torch.dtype, int] = {}
        for evidence in others:
            dtype, number = evidence.tensors.get(name, (tensor.dtype, None))
            # Weights that the rollout computes with in 16 bits were rounded when they arrived.
            if dtype not in sums:
                sums[dtype] = checksum(tensor.to(dtype))
            if number != sums[dtype]:
                part = "normaliser" if name in evidence.buffers else "weights"
                wrong.setdefault((evidence.worker, part), []).append(name)
    for evidence in others:
        for name in sorted(evidence.tensors.keys() - names):
            part = "normaliser" if name in evidence.buffers else "weights"
            wrong.setdefault((evidence.worker, part), []).append(name)
    return [
        Finding(
            part,
            f"{worker} acted with another {_some(tensors)} than the learner has, of the same "
            f"version {version}",
        )
        for (worker, part), tensors in wrong.items()
    ]


def compare_inputs(
    own: Mapping[Place, Mapping[str, int]],
    others: Sequence[Evidence],
    name: Callable[[Place], str] = name_of_step,
) -> list[Finding]:
    """Hold the inputs that a learner received beside those that the policy saw.

    Args:
        own: the learner's checksums, as of `SeenInputs.table`; what nobody noted is not compared.
        others: what rollout workers saw.
        name: says a place in words.
    """
    wrong: dict[str, list[tuple[Place, str]]] = {}
    compared = 0
    for evidence in others:
        for place in evidence.inputs.keys() & own.keys():
            compared += 1
            ours = own[place]
            for key, number in evidence.inputs[place].items():
                if key not in ours or (ours[key] - number) % _MODULUS:
                    wrong.setdefault(key, []).append((place, evidence.worker))
    findings = []
    for key, places in wrong.items():
        place, worker = min(places)
        findings.append(
            Finding(
                "inputs",
                f"'{key}' that the learner received is not what the policy saw in {len(places)} "
                f"of {compared} sampled rows, first of {name(place)}, seen by {worker}",
            )
        )
    return findings


def compare_formats(own: torch.dtype, others: Sequence[Evidence]) -> list[Finding]:
    """Hold the number format that the learner computes in beside those of rollout workers."""
    return [
        Finding(
            "dtype",
            f"{evidence.worker} computes in {_names(evidence.formats)}, the learner in "
            f"{_names({own})}",
        )
        for evidence in others
        if evidence.formats != {own}
    ]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more tensors" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more


def _names(formats: set[torch.dtype]) -> str:
    return " and ".join(sorted(str(each).removeprefix("torch.") for each in formats))
