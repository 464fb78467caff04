"""Low-rank adapters through peft, and the weights they make together with the base.

W = W_0 + s B A with s = lora_alpha / lora_rank. Tensors go to the rollout merged, under the names
of the plain model, or as adapters alone, under the names of peft's files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlinf.models.deferred import CannotDefer, DeferredWeights
from rlinf.models.tensor_files import SafetensorsFiles
from rlinf.utils.extras import install_hint
from rlinf.utils.shards import Rows, Shards, cut, like, own_part, own_rows

if TYPE_CHECKING:
    from peft import PeftModel

_ADAPTER = "default"
_PREFIX = "base_model.model."

Whole = Callable[[Tensor], Tensor]
"""Makes a whole tensor of a shard."""


def add_adapters(lm: nn.Module, cfg: Any, deferral: DeferredWeights | None = None) -> PeftModel:
    """Freeze a language model and give it adapters to train.

    Args:
        lm: the model.
        cfg: its section: `lora_rank`, `lora_alpha`, `lora_target_modules`, `lora_path`.
        deferral: what is told where weights come from, instead of loading them; None loads them.

    Raises:
        ValueError: peft is not there, no module has such a name, or `lora_path` is no adapter.
        CannotDefer: the adapters of `lora_path` have to be loaded as a whole.
    """
    peft = _peft()
    if cfg.lora_path is None:
        model = peft.get_peft_model(lm, lora_config(cfg))
    elif deferral is not None:
        config = lora_config(cfg)
        config.inference_mode = False
        model = peft.get_peft_model(lm, config)
        _read_adapters(model, Path(cfg.lora_path), deferral)
    else:
        lora_config(cfg)
        model = peft.PeftModel.from_pretrained(lm, cfg.lora_path, is_trainable=True)
    if isinstance(model.get_base_model().get_output_embeddings(), peft.tuners.lora.LoraLayer):
        raise ValueError(
            "lora_target_modules names the last layer, which gives the logits; leave it out"
        )
    return model


def _read_adapters(model: PeftModel, folder: Path, deferral: DeferredWeights) -> None:
    """Let the adapters of a model be read from a folder of peft's."""
    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        raise CannotDefer(f"{folder} has no adapter_model.safetensors")
    source = SafetensorsFiles([file])
    names = {
        name: name.replace(f".{_ADAPTER}.", ".")
        for name, _ in model.named_parameters()
        if ".lora_" in name
    }
    if set(names.values()) != set(source.names()):
        raise CannotDefer(f"{file} holds more, or less, than the adapters of the model")
    deferral.read_from(model, source, names)


def lora_config(cfg: Any) -> Any:
    """Peft's config of the adapters that a model section describes.

    Raises:
        ValueError: `lora_path` is no adapter.
    """
    peft = _peft()
    if cfg.lora_path is None:
        return peft.LoraConfig(
            r=cfg.lora_rank,
            lora_alpha=cfg.lora_alpha or cfg.lora_rank,
            target_modules=list(cfg.lora_target_modules) or "all-linear",
            task_type="CAUSAL_LM",
        )
    if not (Path(cfg.lora_path) / "adapter_config.json").is_file():
        raise ValueError(
            f"lora_path is '{cfg.lora_path}', where there is no adapter_config.json; it must be a "
            "folder as save_pretrained of peft writes it"
        )
    return peft.PeftConfig.from_pretrained(cfg.lora_path)


def merged_shards(lm: nn.Module, whole: Whole, use_adapters: bool = True) -> Shards:
    """Weights and buffers of a language model under the names of the plain model, adapters merged.

    They are as sharded as they are in the model: a rank merges the rows that it has. A tensor that
    has several names, such as a tied last layer, comes once, under the first.

    Args:
        lm: a plain model, or one with adapters.
        whole: makes a whole tensor of a shard; every rank has to call this.
        use_adapters: false is the model without what its adapters have learnt.
    """
    tensors = lm.state_dict(keep_vars=True)
    adapters: dict[str, tuple[Tensor, Tensor]] = {}
    for name, tensor in tensors.items():
        layer = name.removesuffix(".base_layer.weight")
        if layer != name and use_adapters:
            a, b = (tensors[f"{layer}.lora_{kind}.{_ADAPTER}.weight"] for kind in "AB")
            rows = own_rows(tensor)
            if lm.get_submodule(layer).fan_in_fan_out:
                adapters[layer] = cut(whole(a).detach().T, rows).T, whole(b).detach()
            else:
                # Both are cut alike: B has as many rows as the base weight.
                adapters[layer] = whole(a).detach(), own_part(b)

    def shards() -> Iterator[tuple[str, Tensor]]:
        seen: set[int] = set()
        for name, tensor in tensors.items():
            if ".lora_" in name or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            layer = name.removesuffix(".base_layer.weight")
            tensor = tensor.detach()
            if layer in adapters:
                module = lm.get_submodule(layer)
                scaling, turned = module.scaling[_ADAPTER], module.fan_in_fan_out
                part = _merge(own_part(tensor), *adapters[layer], scaling, turned)
                tensor = like(tensor, part)
            yield name.removeprefix(_PREFIX).replace(".base_layer.", "."), tensor

    return shards


def merged_tensors(
    lm: nn.Module, whole: Whole, use_adapters: bool = True
) -> Iterator[tuple[str, Tensor]]:
    """The same, whole; every rank has to iterate."""
    for name, tensor in merged_shards(lm, whole, use_adapters)():
        yield name, whole(tensor)


def adapter_shards(lm: nn.Module) -> Shards:
    """Adapters of a language model under the names of peft's files; as `merged_shards`."""

    def shards() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in lm.state_dict().items():
            if ".lora_" in name:
                yield name.replace(f".{_ADAPTER}.", "."), tensor.detach()

    return shards


def adapter_tensors(lm: nn.Module, whole: Whole) -> Iterator[tuple[str, Tensor]]:
    """The same, whole; every rank has to iterate."""
    for name, tensor in adapter_shards(lm)():
        yield name, whole(tensor)


def shape_with_adapters(lm: nn.Module, cfg: Any) -> PeftModel:
    """As `add_adapters`, for a model on the meta device: nothing is read but their config."""
    with torch.device("meta"):
        return _peft().get_peft_model(lm, lora_config(cfg))


class AdapterStore(nn.Module):
    """The rollout's side of adapters: receives them, and makes plain weights of them.

    It has a tensor for each one of `adapter_tensors`, under the same name, so that weights can be
    received into it as into a model. It keeps the base weights of the layers concerned, of a model
    that is sharded this rank's rows of them, and merging begins from them each time: nothing adds
    up.

    Args:
        lm: the plain model that generates, with the base weights.
        cfg: the model section of the actor.
    """

    def __init__(self, lm: nn.Module, cfg: Any) -> None:
        super().__init__()
        with torch.device("meta"):
            shell = shape_with_adapters(type(lm)(lm.config), cfg)
        # In a list, so that it is no part of this module.
        self._model = [lm]
        self._layers: dict[str, tuple[Tensor, Rows | None, float, bool]] = {}
        for name, module in shell.named_modules():
            if hasattr(module, "lora_A") and _ADAPTER in module.lora_A:
                weight = lm.get_submodule(name.removeprefix(_PREFIX)).weight
                base, rows = own_part(weight).clone(), own_rows(weight)
                self._layers[name] = base, rows, module.scaling[_ADAPTER], module.fan_in_fan_out
        self._tensors = {
            name: torch.zeros(tensor.shape, dtype=tensor.dtype)
            for name, tensor in adapter_tensors(shell, lambda tensor: tensor)
        }

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return the adapters by name."""
        return dict(self._tensors)

    def merged(self, device: torch.device | None = None) -> Iterator[tuple[str, Tensor]]:
        """The weights of all layers with adapters, merged, under the names of the plain model.

        Of a model that is sharded, the rows that this rank has.

        Args:
            device: where to merge; None is where the base weights are.
        """
        for name, (base, rows, scaling, turned) in self._layers.items():
            base = base if device is None else base.to(device)
            a = self._tensors[f"{name}.lora_A.weight"].to(base.device)
            b = self._tensors[f"{name}.lora_B.weight"].to(base.device)
            if turned:
                a = cut(a.T, rows).T
            else:
                b = cut(b, rows)
            yield f"{name.removeprefix(_PREFIX)}.weight", _merge(base, a, b, scaling, turned)

    @torch.no_grad()
    def merge(self) -> None:
        """Bring the model to the adapters that were received, on whatever device it is now."""
        model = self._model[0]
        for name, tensor in self.merged(next(model.parameters()).device):
            own_part(model.get_parameter(name)).copy_(tensor)


def _merge(base: Tensor, a: Tensor, b: Tensor, scaling: float, turned: bool) -> Tensor:
    """W_0 + s B A, in float32 and then in the format of the base."""
    delta = (b.float() @ a.float()) * scaling
    return (base.float() + (delta.T if turned else delta)).to(base.dtype)


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ValueError(
            f"model.is_lora needs peft: install it with {install_hint('reasoning')}"
        ) from error
    return peft
