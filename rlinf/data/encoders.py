"""The encoders of a whole config: agents bring their tools, and the format of their calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf.agents.loops import schemas_for_template
from rlinf.agents.tools.solution_writer import SolutionWriter
from rlinf.data.prompt_encoder import PromptEncoder
from rlinf.data.solution_encoder import SolutionEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encoders_of_run(
    cfg: Any, tokenizer: PreTrainedTokenizerBase
) -> tuple[PromptEncoder, SolutionEncoder]:
    """Make what encodes the prompts of a run, and what encodes their worked solutions.

    Args:
        cfg: A whole config.
        tokenizer: What `load_tokenizer` returns.

    Raises:
        ValueError: The chat template is asked for and the tokenizer has none.
    """
    loop = cfg.get("agentloop")
    tools = () if loop is None else schemas_for_template(loop)
    prompts = PromptEncoder(tokenizer, cfg.data, tools)
    writer = None if loop is None else SolutionWriter(loop.parser)
    return prompts, SolutionEncoder(tokenizer, prompts, writer)
