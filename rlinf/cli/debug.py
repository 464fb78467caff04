"""`rlinf train --debug`: what a run that is debugged is told."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

VARIABLE = "RLINF_DEBUG"
POST_MORTEM, INLINE = "1", "inline"
"""Environment variable that tells a run, and its values."""


def add_arguments(parser: Any) -> None:
    """Add `--debug` and `--debug=inline` to a command that runs a config."""
    parser.add_argument(
        "--debug",
        action="store_const",
        const=POST_MORTEM,
        help="open pdb here where a worker or the driver raises; breakpoint() opens it anyway",
    )
    # Two options, since the word after --debug may be the config's name.
    parser.add_argument(
        "--debug=inline",
        dest="debug",
        action="store_const",
        const=INLINE,
        help="the same with all workers in this process, one rank per group, one at a time",
    )


def overrides_of(
    mode: str, name: str, overrides: Sequence[str], config_path: str | None
) -> list[str]:
    """Return overrides that a debugged run needs besides its own.

    Args:
        mode: `POST_MORTEM` or `INLINE`.
        name: Name of the config.
        overrides: Its overrides; what they say of a key stays.
        config_path: Folder of the config, if it was named.
    """
    # A view that redraws itself would write over the debugger.
    needed = {"runner.progress": "plain"}
    if mode == INLINE:
        needed |= _one_rank_each(name, overrides, config_path)
    given = {text.lstrip("+").partition("=")[0] for text in overrides}
    return [f"{key}={value}" for key, value in needed.items() if key not in given]


def _one_rank_each(name: str, overrides: Sequence[str], config_path: str | None) -> dict[str, str]:
    """Place each component that has several ranks on the first resource of its own."""
    from omegaconf import OmegaConf

    from rlinf.config import build_config
    from rlinf.config.load import find_config

    folder, stem = find_config(name, config_path)
    cfg = build_config(stem, overrides, folder)
    placement = OmegaConf.select(cfg, "cluster.component_placement") or {}
    return {
        f"cluster.component_placement.{component}": _first(where)
        for component, where in placement.items()
        # Others are refused when they turn out to have several ranks.
        if isinstance(where, (str, int)) and component.isidentifier()
    }


def _first(where: str | int) -> str:
    found = re.search(r"\d+", str(where))
    return found.group() if found else "0"
