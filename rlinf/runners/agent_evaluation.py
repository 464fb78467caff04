"""What agents are evaluated by beside answers: the same questions, with tools switched off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf.data.prompts import PromptSet
from rlinf.runners.reasoning_metrics import of_validation, sentence
from rlinf.runners.reasoning_services import ReasoningServices
from rlinf.utils.numbers import percent

_KEPT = ("pass@1", "pass@1_low", "pass@1_high")


def asks_without_tools(cfg: Any) -> bool:
    """Return whether an evaluation asks its questions without tools, too.

    Args:
        cfg: checked configuration.
    """
    section = cfg.get("agentloop")
    if section is None or not section.eval_without_tools:
        return False
    return bool(section.tools or section.mcp_servers)


def without_tools(services: ReasoningServices, prompts: PromptSet, key: str) -> dict[str, float]:
    """Ask all questions again with tools switched off; return `eval/pass@1_no_tools`.

    Prompts and format of calls stay the same. A call is answered as one of an unknown tool is: by
    an error that the model reads. So the model may still answer with what it knows itself.

    Args:
        services: of the run.
        prompts: the validation set.
        key: what the episodes wait under.
    """
    found = of_validation(services.validate(prompts, key, tools=False))
    return {f"eval/{_renamed(name)}": found[f"eval/{name}"] for name in _KEPT}


def sentences(metrics: Mapping[str, float]) -> list[str]:
    """Say what an evaluation of agents found: answers, tools, and answers without tools.

    Args:
        metrics: of `of_validation`, and of `without_tools` where that was asked for.
    """
    said = [sentence(metrics)]
    said.append(
        f"in the mean, an episode had {metrics['eval/turns']:.2f} turns, "
        f"{metrics['eval/tool_calls']:.2f} tool calls and "
        f"{metrics['eval/tool_errors']:.2f} tool errors"
    )
    rate = metrics.get("eval/pass@1_no_tools")
    if rate is not None:
        said.append(f"the same with tools switched off: pass@1 {percent(rate)}")
    return said


def _renamed(name: str) -> str:
    return name.replace("pass@1", "pass@1_no_tools")
