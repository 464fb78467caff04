"""What is particular to each model: its network, sizes, prompt and normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlinf.models.embodiment.flow_vla.network import ExpertNetwork
from rlinf.models.embodiment.flow_vla.openpi import OpenPISizes, Pi0Network, Pi05Network
from rlinf.models.embodiment.flow_vla.prompts import (
    Style,
    pi0_prompt,
    pi05_prompt,
    smolvla_prompt,
)
from rlinf.models.embodiment.flow_vla.scaling import MEAN_STD, QUANTILES
from rlinf.models.embodiment.flow_vla.smolvla import SmolVLANetwork, SmolVLASizes


@dataclass(frozen=True)
class Layout:
    """A model with an action expert.

    Attributes:
        name: `type` in its `config.json`.
        network: Class of the network, made with sizes.
        sizes: Class of the sizes, with `of_config` and `config`; the defaults are the published
            ones.
        style: How its prompts are written.
        begins: Prompts begin with the tokenizer's first token of all.
        mode: How states and actions are normalised, unless a folder says it.
    """

    name: str
    network: type[ExpertNetwork]
    sizes: Any
    style: Style
    begins: bool
    mode: str


SMOLVLA = Layout("smolvla", SmolVLANetwork, SmolVLASizes, smolvla_prompt, False, MEAN_STD)
PI0 = Layout("pi0", Pi0Network, OpenPISizes, pi0_prompt, True, MEAN_STD)
PI05 = Layout("pi05", Pi05Network, OpenPISizes, pi05_prompt, True, QUANTILES)
LAYOUTS = {layout.name: layout for layout in (SMOLVLA, PI0, PI05)}
"""By the `type` in their `config.json`."""
