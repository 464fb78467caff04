"""Low-rank adapters of policies that have a pretrained network.

The pretrained base is frozen, and its linear layers get adapters. What a policy has besides, such
as projections of states and actions, a value function or learned noise, is trained in full.
Rollouts act with base and adapters side by side, as the learner computes; folders are written
merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from rlinf.config.suggest import listed
from rlinf.models.fill import fill
from rlinf.models.lora import lora_config, merged_tensors
from rlinf.models.tensor_files import SafetensorsFiles

if TYPE_CHECKING:
    from rlinf.models.deferred import DeferredWeights

_WEIGHTS = "adapter_model.safetensors"
_PREFIXES = ("base_model.model.model.", "base_model.model.")
"""What names begin with in files of peft: those of lerobot's policies, and all others."""
_KINDS = (".lora_A.default.weight", ".lora_B.default.weight")


class Adaptable(Protocol):
    """A network with a pretrained base.

    Attributes:
        output_layer: Path of a linear layer whose weight is used without calling it; empty if
            there is none. It gets no adapters.
    """

    output_layer: str

    def is_base(self, name: str) -> bool:
        """Return whether a weight, named as in `named_parameters`, is one of the base."""
        ...


def add_adapters(network: nn.Module, cfg: Any, deferral: DeferredWeights | None = None) -> None:
    """Freeze the base of a network, in place, and give it adapters to train.

    Layers that are frozen already get none, and stay frozen. Adapters that are read for such a
    layer are used, but not trained.

    Args:
        network: An `Adaptable`, with the weights of the base.
        cfg: Its model section: `lora_rank`, `lora_alpha`, `lora_target_modules`, `lora_path`.
        deferral: What is told where weights come from, instead of loading them; None loads them.

    Raises:
        ValueError: peft is not there, no layer has such a name, or `lora_path` does not fit.
    """
    config = lora_config(cfg)
    from peft import inject_adapter_in_model

    config.inference_mode = False
    if cfg.lora_path is None:
        config.target_modules = set(_layers(network, cfg.lora_target_modules))
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    inject_adapter_in_model(config, network)
    if cfg.lora_path is not None:
        _read(network, Path(cfg.lora_path), deferral)
    # peft has frozen all that is no adapter.
    for name, parameter in network.named_parameters():
        layer, adapter, _ = name.partition(".lora_")
        plain = f"{layer}.weight" if adapter else name.replace(".base_layer.", ".")
        learns = plain not in frozen and (bool(adapter) or not network.is_base(plain))
        parameter.requires_grad_(learns)


def merged_state(network: nn.Module) -> dict[str, Tensor]:
    """Return weights and buffers under the names of a network without adapters, these merged."""
    return dict(merged_tensors(network, lambda tensor: tensor))


def _layers(network: nn.Module, wanted: Sequence[str]) -> list[str]:
    """Return the paths of the layers that get adapters.

    Args:
        network: The network.
        wanted: Names of layers, or the ends of their paths; empty is all.
    """
    found = [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear)
        and module.weight.requires_grad
        and network.is_base(f"{name}.weight")
        and name != network.output_layer
    ]
    if not found:
        raise ValueError(
            "model.is_lora is true, and all layers that could have adapters are frozen: set "
            "is_lora to false, or freeze fewer parts"
        )
    for end in wanted:
        if not any(_ends(name, end) for name in found):
            known = listed(sorted({name.rpartition(".")[2] for name in found}))
            raise ValueError(
                f"model.lora_target_modules names '{end}', and no layer that could have adapters "
                f"is called so; there are {known}"
            )
    return [name for name in found if not wanted or any(_ends(name, end) for end in wanted)]


def _ends(path: str, end: str) -> bool:
    return path == end or path.endswith(f".{end}")


def _read(network: nn.Module, folder: Path, deferral: DeferredWeights | None) -> None:
    """Read the adapters of a folder of peft's."""
    own = [name for name, _ in network.named_parameters() if ".lora_" in name]
    strange = [name for name in own if not name.endswith(_KINDS)]
    layers = {name.partition(".lora_")[0] for name in own}
    if network.output_layer in layers:
        strange.append(network.output_layer)
    strange += [
        layer
        for layer in sorted(layers)
        if not isinstance(network.get_submodule(layer).get_base_layer(), nn.Linear)
    ]
    if strange:
        raise ValueError(
            f"model.lora_path is '{folder}', whose adapters are not plain ones of linear layers: "
            f"{listed(strange[:4])}; merge them into the weights of model_path with peft instead"
        )
    file = folder / _WEIGHTS
    if not file.is_file():
        raise ValueError(f"model.lora_path is '{folder}', where there is no {_WEIGHTS}")
    source = SafetensorsFiles([file])
    there = source.names()
    prefix = next(p for p in _PREFIXES if p == _PREFIXES[-1] or all(n.startswith(p) for n in there))
    names = {name: prefix + name.replace(".default.", ".") for name in own}
    fill(network, source, names, str(file), deferral)
