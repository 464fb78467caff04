"""Writes a policy into a folder, in one of several formats."""

from __future__ import annotations

import importlib
import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf.config.suggest import did_you_mean, listed
from rlinf.models.embodiment.distributions.choice import choose_distribution
from rlinf.models.export.readme import KNOWN, readme
from rlinf.models.weights import WEIGHTS_FILE
from rlinf.utils.env_spec import EnvSpec

if TYPE_CHECKING:
    from torch import Tensor

HERE = Path(__file__).parent
VLA_FOLDERS = {
    **dict.fromkeys(("openvla", "openvla_oft"), "rlinf.models.embodiment.openvla.folder"),
    **dict.fromkeys(("smolvla", "openpi"), "rlinf.models.embodiment.flow_vla.folder"),
    "gr00t": "rlinf.models.embodiment.flow_vla.groot.folder",
}
"""Modules whose `save_folder` writes the public layout, by model type."""
_Q_FUNCTIONS = "q_head."
"""What names of weights begin with that nobody acts with; they are left out."""
NETWORK, MODELING = "rlinf_policy.py", "modeling_rlinf_policy.py"


@dataclass(frozen=True)
class PolicyExport:
    """A policy and what is known of it.

    Attributes:
        tensors: Weights and buffers by name, whole, on the CPU.
        settings: Its model section, plain data.
        env_spec: Sizes and ranges of the env that it was trained in.
        facts: Where it comes from, plain data.
    """

    tensors: dict[str, Tensor]
    settings: dict[str, Any]
    env_spec: EnvSpec
    facts: dict[str, Any]

    @property
    def model_type(self) -> str:
        """Registered name of the model."""
        return str(self.settings["model_type"]).lower()

    def config(self) -> dict[str, Any]:
        """Return what `config.json` says in every format."""
        spec, own = self.env_spec, self.settings
        shape, choices = spec.image_shape, spec.action_choices
        return {
            "model_type": "rlinf_policy",
            "architecture": self.model_type,
            "dtype": "float32",
            "obs_dim": own.get("obs_dim") or spec.obs_dim,
            "action_dim": own.get("action_dim") or spec.action_dim,
            "action_low": _bounds(spec.action_low),
            "action_high": _bounds(spec.action_high),
            "action_choices": None if choices is None else list(choices),
            "distribution": self._distribution(),
            "image_channels": shape[-1] if shape else 3,
            "settings": own,
            "trained": self.facts,
        }

    def _distribution(self) -> str | None:
        """Name of the distribution of actions; None for flows, and models that are not ours."""
        if self.model_type not in KNOWN or self.model_type == "flow_policy":
            return None
        if "distribution" not in self.settings:
            raise ValueError(
                "its settings do not say which distribution actions have: it was written by an "
                "earlier version; resume the run and save it again"
            )
        spec = self.env_spec
        return choose_distribution(
            self.settings["distribution"], spec.action_choices, spec.action_low, spec.action_high
        )


def write_export(policy: PolicyExport, to: str, out: Path) -> Path:
    """Write a folder, whole or not at all.

    Args:
        policy: What to write.
        to: One of `FORMATS`.
        out: Absent, or an empty folder.

    Returns:
        The folder.

    Raises:
        ValueError: The format is unknown or cannot hold this policy, or something is in the way.
    """
    if to not in FORMATS:
        hint = did_you_mean(to, FORMATS)
        raise ValueError(f"unknown format '{to}'; known: {listed(FORMATS)}. {hint}".rstrip())
    return write_whole(out, lambda part: FORMATS[to](policy, part))


def write_whole(out: Path, write: Callable[[Path], None]) -> Path:
    """Write a folder, whole or not at all.

    Args:
        out: Absent, or an empty folder.
        write: Writes into the folder that it is given.

    Returns:
        The folder.

    Raises:
        ValueError: Something is in the way.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not an empty folder: choose another with --out, or empty it")
    part = out.with_name(f".{out.name}.part")
    if part.exists():
        shutil.rmtree(part)
    part.mkdir(parents=True)
    try:
        write(part)
        os.replace(part, out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return out


def _write_safetensors(policy: PolicyExport, folder: Path) -> None:
    _write_policy(policy, folder, {})
    if policy.model_type in KNOWN:
        shutil.copyfile(HERE / NETWORK, folder / NETWORK)
    (folder / "README.md").write_text(readme(policy.config(), "safetensors"))


def _write_hf(policy: PolicyExport, folder: Path) -> None:
    if policy.model_type in VLA_FOLDERS:
        from rlinf.models.registry import get_model

        model = get_model(policy.settings, policy.env_spec)
        model.load_state_dict(policy.tensors)
        module = importlib.import_module(VLA_FOLDERS[policy.model_type])
        return module.save_folder(model, folder)
    if policy.model_type not in KNOWN:
        raise ValueError(
            f"transformers has no class for model type '{policy.model_type}', and there is code "
            f"for {listed([*KNOWN, *VLA_FOLDERS])} only: export it with --to safetensors"
        )
    module = MODELING.removesuffix(".py")
    classes = {
        "architectures": ["RLinfPolicyModel"],
        "auto_map": {
            "AutoConfig": f"{module}.RLinfPolicyConfig",
            "AutoModel": f"{module}.RLinfPolicyModel",
        },
    }
    _write_policy(policy, folder, classes)
    for name in (NETWORK, MODELING):
        shutil.copyfile(HERE / name, folder / name)
    (folder / "README.md").write_text(readme(policy.config(), "hf"))


FORMATS: dict[str, Callable[[PolicyExport, Path], None]] = {
    "safetensors": _write_safetensors,
    "hf": _write_hf,
}
"""Writers by the name of the format."""


def _write_policy(policy: PolicyExport, folder: Path, more: dict[str, Any]) -> None:
    """Write `config.json` and the weights, and see to it that they fit each other."""
    from safetensors.torch import save_file

    config, given = {**policy.config(), **more}, policy.tensors
    if policy.model_type in KNOWN:
        from rlinf.models.export.rlinf_policy import RLinfPolicy

        given = {name: t for name, t in given.items() if not name.startswith(_Q_FUNCTIONS)}
        wrong = _misfits(RLinfPolicy(config).state_dict(), given)
        if wrong:
            raise ValueError(
                f"the weights are not those of the {policy.model_type} of their settings: "
                f"{'; '.join(wrong[:5])}"
            )
    (folder / "config.json").write_text(json.dumps(config, indent=1, allow_nan=False) + "\n")
    tensors = {name: tensor.contiguous() for name, tensor in given.items()}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def _misfits(own: dict[str, Tensor], given: dict[str, Tensor]) -> list[str]:
    wrong = [f"missing {name}" for name in sorted(own.keys() - given.keys())]
    wrong += [f"unknown {name}" for name in sorted(given.keys() - own.keys())]
    shapes = ((n, list(given[n].shape), list(t.shape)) for n, t in own.items() if n in given)
    return wrong + [f"{name} is {have}, not {want}" for name, have, want in shapes if have != want]


def _bounds(bounds: tuple[float, ...] | None) -> list[float | None] | None:
    """Bound that JSON can hold: None where there is none."""
    if bounds is None:
        return None
    return [bound if math.isfinite(bound) else None for bound in bounds]
