"""The table of model types: who builds which, and how a builder gets its settings."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rlinf.config.plugins import load_extension, register_schema
from rlinf.config.signatures import Call, check_call, check_method
from rlinf.config.supported_model import SupportedModel, get_supported_model

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel
    from torch import nn

    from rlinf.utils.env_spec import EnvSpec

Builder = Callable[..., "nn.Module"]

_builders: dict[str, Builder] = {}
_lazy: dict[str, str] = {
    "mlp_policy": "rlinf.models.embodiment.mlp_policy.mlp_policy:build_mlp_policy",
    "cnn_policy": "rlinf.models.embodiment.cnn_policy.cnn_policy:build_cnn_policy",
    "flow_policy": "rlinf.models.embodiment.flow_policy.build:build_flow_policy",
    "cma": "rlinf.models.embodiment.cma.cma:build_cma",
    "openvla": "rlinf.models.embodiment.openvla.openvla:build_openvla",
    "openvla_oft": "rlinf.models.embodiment.openvla.openvla_oft:build_openvla_oft",
    "smolvla": "rlinf.models.embodiment.flow_vla.build:build_smolvla",
    "openpi": "rlinf.models.embodiment.flow_vla.build:build_openpi",
    "gr00t": "rlinf.models.embodiment.flow_vla.groot.build:build_groot",
    "mlp_reward_model": "rlinf.models.embodiment.reward_model.networks:build_mlp_reward_model",
    "cnn_reward_model": "rlinf.models.embodiment.reward_model.networks:build_cnn_reward_model",
    **dict.fromkeys(
        ("qwen2.5", "qwen3", "llama", "hf_causal_lm"),
        "rlinf.models.causal_lm.model:build_causal_lm",
    ),
}
_METHODS = {
    "default_forward": Call(
        ("forward_inputs",), ("compute_logprobs", "compute_entropy", "compute_values")
    ),
    "predict_action_batch": Call(("env_obs",), ("mode",)),
}
"""How methods of embodied policies are called."""

_PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def register_model(
    model_type: str,
    builder: Builder | None = None,
    *,
    category: str = "embodied",
    schema: type[BaseModel] | None = None,
    replaces: bool = False,
) -> Any:
    """Make a model type known; also a decorator of a builder, or of a policy class.

    Args:
        model_type: What the user writes as `model_type`; case does not matter.
        builder: Called as `builder(cfg, torch_dtype)` and returns the model. A builder with a
            parameter `env_spec` gets the env's spec (or None) under that name. One with a
            parameter `deferral` may be asked to leave the weights out: it then gets a
            `rlinf.models.deferred.DeferredWeights`, and otherwise None. Left out when used as a
            decorator.
        category: `embodied`, `reward` or `reasoning`.
        schema: Keys that the model adds to its section of the config.
        replaces: Take the place of whoever has the name.

    Returns:
        The builder; without one, a decorator.

    Raises:
        ValueError: The name is taken, the category is unknown, or the builder, or a method of the
            policy class, cannot be called as it will be.
    """

    def register(build: Builder) -> Builder:
        name = model_type.lower()
        taken = name in _lazy or _builders.get(name, build) is not build
        if taken and not replaces:
            raise ValueError(
                f"model type '{model_type}' already has a builder; pass replaces=True to take its "
                "place"
            )
        _check_signatures(f"model '{model_type}'", build)
        SupportedModel.register(name, category)
        if schema is not None:
            register_schema("model", name, schema, replaces=replaces)
        _lazy.pop(name, None)
        _builders[name] = build
        return build

    return register if builder is None else register(builder)


def _check_signatures(what: str, build: Builder) -> None:
    spec = ("env_spec",) if _takes_spec(build) else ()
    check_call(what, build, Call(("cfg", "torch_dtype"), spec))
    for method, call in _METHODS.items():
        if hasattr(build, method):
            check_method(what, build, method, call)


def _takes_spec(build: Builder) -> bool:
    return callable(build) and "env_spec" in inspect.signature(build).parameters


def _takes_deferral(build: Builder) -> bool:
    return "deferral" in inspect.signature(build).parameters


def can_defer(model_type: str) -> bool:
    """Return whether a model can be built without its weights.

    Raises:
        ValueError: The type is unknown, or has no builder.
    """
    load_extension()
    return _takes_deferral(_builder(model_type))


def get_model(
    cfg: Mapping[str, Any],
    env_spec: EnvSpec | None = None,
    dtype: torch.dtype | None = None,
    *,
    deferred: bool = False,
) -> nn.Module:
    """Build the model that a config section describes.

    Args:
        cfg: A model section such as `cfg.actor.model`, or a mapping with some of its keys; it is
            not changed.
        env_spec: Sizes and ranges of the env; fills `obs_dim`, `action_dim` and
            `action_choices` where they are null.
        dtype: Number format of the weights; None is `cfg.precision`.
        deferred: Leave the weights out if the builder can, for `TrainEngine` to fill in; see
            `rlinf.models.deferred`.

    Returns:
        The model, on the CPU; deferred, its parameters are on the meta device.

    Raises:
        ValueError: The type is unknown (near ones are named) or has no builder, a key is wrong,
            or config and env disagree about a size.
    """
    import torch

    from rlinf.models.settings import complete

    load_extension()
    builder = _builder(cfg.get("model_type"))
    cfg = complete(cfg, env_spec)
    if dtype is None:
        dtype = getattr(torch, _PRECISIONS[cfg.precision])
    further = {"env_spec": env_spec} if _takes_spec(builder) else {}
    if deferred and _takes_deferral(builder):
        from rlinf.models.deferred import without_weights

        return without_weights(lambda deferral: builder(cfg, dtype, deferral=deferral, **further))
    return builder(cfg, dtype, **further)


def _builder(model_type: str) -> Builder:
    name = get_supported_model(model_type).value
    if name in _lazy:
        module, _, function = _lazy[name].partition(":")
        _builders[name] = getattr(importlib.import_module(module), function)
        del _lazy[name]
    if name not in _builders:
        known = ", ".join(sorted({*_builders, *_lazy}))
        raise ValueError(
            f"model type '{model_type}' is known but nothing builds it here; there are builders "
            f"for: {known}"
        )
    return _builders[name]
