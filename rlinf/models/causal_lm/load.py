"""Loads a language model from a folder of Hugging Face layout, or makes a fresh one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rlinf.config.suggest import did_you_mean, listed
from rlinf.models.causal_lm.config import HF_MODEL_TYPES
from rlinf.models.deferred import CannotDefer, DeferredWeights
from rlinf.models.tensor_files import SafetensorsFiles, tensors_of_folder
from rlinf.utils.extras import install_hint

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_CHANGES_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


def load_causal_lm(
    cfg: Any, dtype: torch.dtype, deferral: DeferredWeights | None = None
) -> PreTrainedModel:
    """Build the network that a model section describes, as transformers knows it.

    Args:
        cfg: a model section, complete.
        dtype: number format of the weights.
        deferral: what is told where weights come from, instead of loading them; None loads them.

    Returns:
        The model, on the CPU, in training mode, without dropout. A fresh one is random: seed torch
        before.

    Raises:
        ValueError: the folder is none, or of another architecture; or sizes are missing or unknown.
        CannotDefer: the folder has to be loaded as a whole.
    """
    if cfg.model_path is None:
        model = _fresh(cfg, dtype)
    elif deferral is None:
        model = _from_folder(cfg, dtype)
    else:
        model = _shape_of_folder(cfg, dtype)
        read_later(model, Path(cfg.model_path).expanduser(), deferral)
    without_dropout(model)
    return model.train()


def read_later(model: PreTrainedModel, folder: Path, deferral: DeferredWeights) -> None:
    """Let the weights of a model be read from a folder of Hugging Face layout, one at a time.

    Args:
        model: the model, without weights.
        folder: where its tensors are, under their own names or those that transformers renames.
        deferral: what is told.

    Raises:
        CannotDefer: the folder has to be loaded as a whole.
    """
    names, source = _tensors_for(model, folder)
    # Transformers draws nothing for what it reads.
    deferral.forget()
    deferral.read_from(model, source, names)


def shape_of_causal_lm(cfg: Any) -> PreTrainedModel:
    """Return the same network without weights, on the meta device; reads only its config.

    Args:
        cfg: a model section, complete.

    Raises:
        ValueError: as for `load_causal_lm`.
    """
    with torch.device("meta"):
        if cfg.model_path is None:
            return _fresh(cfg, torch.float32).train()
        return _shape_of_folder(cfg, torch.float32).train()


def check_logits(config: PreTrainedConfig) -> None:
    """Refuse architectures whose logits are not the output of their last layer.

    Raises:
        ValueError: names what the architecture does to its logits.
    """
    for name in _CHANGES_LOGITS:
        value = getattr(config, name, None)
        if value not in (None, 1, 1.0):
            raise ValueError(
                f"models of type {config.model_type} change their logits by {name} {value}, which "
                "the trainer does not compute; use another architecture"
            )


def without_dropout(model: nn.Module) -> None:
    """Turn dropout off: log-probabilities must be those of the model that generates."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "attn_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def transformers_module() -> Any:
    """Import transformers, or say which extra it is part of."""
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
            f"language models need transformers: install it with {install_hint('reasoning')}"
        ) from error
    # Torch lists once which functions obey `with torch.device(...)`, when one is first called in
    # such a block. Transformers replaces one of them while it loads, which must not be that time.
    with torch.device("cpu"):
        torch.empty(0)
    return transformers


def _fresh(cfg: Any, dtype: torch.dtype) -> PreTrainedModel:
    transformers = transformers_module()
    sizes = dict(cfg.hf_config)
    kind = HF_MODEL_TYPES[cfg.model_type.lower()] or sizes.pop("model_type", None)
    if not sizes or kind is None:
        raise ValueError(
            f"{cfg.model_type} has neither model_path nor "
            f"{'hf_config' if kind else 'hf_config.model_type'}: name a folder with weights, or "
            "give the sizes of a fresh model in hf_config, such as vocab_size, hidden_size and "
            "num_hidden_layers"
        )
    known = transformers.AutoConfig.for_model(kind)
    for name in sizes:
        if not hasattr(known, name):
            hint = did_you_mean(name, [key for key in vars(known) if not key.startswith("_")])
            raise ValueError(f"hf_config.{name}: {kind} of transformers has no such key; {hint}")
    config = transformers.AutoConfig.for_model(kind, **sizes)
    return transformers.AutoModelForCausalLM.from_config(
        config, dtype=dtype, attn_implementation=cfg.attn_implementation
    )


def _from_folder(cfg: Any, dtype: torch.dtype) -> PreTrainedModel:
    return transformers_module().AutoModelForCausalLM.from_pretrained(
        Path(cfg.model_path).expanduser(),
        config=_config_of_folder(cfg),
        dtype=dtype,
        attn_implementation=cfg.attn_implementation,
        trust_remote_code=cfg.trust_remote_code,
    )


def _shape_of_folder(cfg: Any, dtype: torch.dtype) -> PreTrainedModel:
    """Build the network of a folder without reading its weights."""
    transformers = transformers_module()
    config = _config_of_folder(cfg)
    model = transformers.AutoModelForCausalLM.from_config(
        config,
        dtype=dtype,
        attn_implementation=cfg.attn_implementation,
        trust_remote_code=cfg.trust_remote_code,
    )
    folder = Path(cfg.model_path).expanduser()
    if (folder / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return model


def _tensors_for(model: PreTrainedModel, folder: Path) -> tuple[dict[str, str], SafetensorsFiles]:
    """Find the parameters of a model in its folder.

    Returns:
        Names of tensors in the files, by names of parameters; and the files.

    Raises:
        CannotDefer: they are not there one by one, under their own names.
    """
    source = tensors_of_folder(folder)
    if source is None or getattr(model.config, "quantization_config", None) is not None:
        raise CannotDefer(f"{folder} has no plain weights in safetensors files")
    there = _names_in_model(model, source.names())
    names: dict[str, str] = {}
    found: set[int] = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        known = there.get(name)
        if known is None or source.shape(known) != tuple(parameter.shape):
            continue
        if id(parameter) not in found:
            names[name] = known
            found.add(id(parameter))
    odd = [name for name, parameter in model.named_parameters() if id(parameter) not in found]
    persistent = model.state_dict().keys()
    odd += [name for name, _ in model.named_buffers() if name in persistent]
    if odd:
        raise CannotDefer(
            f"the files of {folder} do not hold {', '.join(odd[:4])} as a parameter of its own"
        )
    return names, source


def _names_in_model(model: PreTrainedModel, saved: Iterable[str]) -> dict[str, str]:
    """Return names in files by names in the model, as `from_pretrained` matches them.

    Tensors that transformers would compute from those of the files are not among them.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    transforms = get_model_conversion_mapping(model)
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    own, prefix = model.state_dict(), model.base_model_prefix
    found: dict[str, str] = {}
    for name in saved:
        renamed, computed = rename_source_key(name, renamings, converters, prefix, own)
        if renamed not in own and name in own:
            renamed, computed = name, None
        if computed is None:
            found[renamed] = name
    return found


def _config_of_folder(cfg: Any) -> PreTrainedConfig:
    folder = Path(cfg.model_path).expanduser()
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"model_path is '{cfg.model_path}', where there is no config.json; it must be a folder "
            "as save_pretrained of transformers writes it"
        )
    if cfg.hf_config:
        raise ValueError(
            f"hf_config gives sizes of a fresh model ({listed(cfg.hf_config)}), but model_path "
            "names a folder that has its own; keep one of the two"
        )
    config = transformers_module().AutoConfig.from_pretrained(
        folder, trust_remote_code=cfg.trust_remote_code
    )
    wanted = HF_MODEL_TYPES[cfg.model_type.lower()]
    if wanted is not None and config.model_type != wanted:
        raise ValueError(
            f"model_type is {cfg.model_type}, but the folder {folder} holds a {config.model_type}; "
            "set model_type to hf_causal_lm, which takes any"
        )
    return config
