"""The README of an exported policy: a few lines that load it."""

from __future__ import annotations

from typing import Any

KNOWN = ("mlp_policy", "cnn_policy", "flow_policy")
"""Model types that `rlinf_policy.py` can run."""

_PLAIN = """\
```python
import torch
from rlinf_policy import load_policy  # the file beside this one

policy = load_policy(".")
actions = policy({inputs})  # [1, {chunk}, {action_dim}], in the units of the env
```

The weights themselves, whatever runs them:

```python
from safetensors.torch import load_file

weights = load_file("model.safetensors")
```
"""

_TRANSFORMERS = """\
```python
import torch
from transformers import AutoModel

policy = AutoModel.from_pretrained(".", trust_remote_code=True).eval()
with torch.no_grad():
    actions = policy({inputs})  # [1, {chunk}, {action_dim}], in the units of the env
```

`trust_remote_code` runs `modeling_rlinf_policy.py` and `rlinf_policy.py` of this folder.
"""

_UNKNOWN = """\
```python
import json
from safetensors.torch import load_file

weights = load_file("model.safetensors")
config = json.load(open("config.json"))
```

The model type `{architecture}` is not one of RLinf's own: the code that runs it is where it was
registered.
"""

_README = """\
# A policy trained with RLinf

Model type `{architecture}`, step {step}, env {env}. It loads without RLinf:

{how}
| file | what |
|---|---|
| `model.safetensors` | weights and buffers, those that normalise the states among them |
| `config.json` | the architecture, its settings, sizes and ranges of observations and actions |

Actions are the most likely ones, as in RLinf's evaluations{but}. To go on with these weights in
RLinf, set `{key}` to this folder.
"""


def readme(config: dict[str, Any], to: str) -> str:
    """Return the text.

    Args:
        config: What `config.json` says.
        to: The format.
    """
    architecture, settings, facts = (config[k] for k in ("architecture", "settings", "trained"))
    how = {"safetensors": _PLAIN, "hf": _TRANSFORMERS}[to]
    if architecture not in KNOWN:
        how = _UNKNOWN
    words = {
        "architecture": architecture,
        "step": facts.get("step", "unknown"),
        "env": facts.get("env", "unknown"),
        "inputs": ", ".join(_inputs(config)),
        "chunk": settings.get("num_action_chunks", 1),
        "action_dim": config["action_dim"],
        "but": ", each plan made anew" if settings.get("rtc") else "",
        # Q-functions are not in the folder: only the second lets them begin afresh.
        "key": "runner.ckpt_path" if settings.get("add_q_head") else "actor.model.model_path",
    }
    return _README.format(how=how.format(**words), **words)


def _inputs(config: dict[str, Any]) -> list[str]:
    """Return the arguments that show which observations the policy takes."""
    settings, inputs = config["settings"], []
    if settings.get("use_states", True):
        inputs.append(f"states=torch.zeros(1, {config['obs_dim']})")
    if config["architecture"] != "cnn_policy" and not settings.get("use_images", False):
        return inputs
    size, channels = settings["image_size"], config["image_channels"]
    views = {
        "main_images": 1,
        "wrist_images": settings["wrist_views"],
        "extra_view_images": settings["extra_views"],
    }
    for key, count in views.items():
        if count:
            shape = f"1, {count}, {size}, {size}, {channels}"
            inputs.append(f"{key}=torch.zeros({shape}, dtype=torch.uint8)")
    return inputs
