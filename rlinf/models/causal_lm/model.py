"""A language model as the trainer uses it: sequences in, one number per response token out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlinf.models.causal_lm import attention
from rlinf.models.causal_lm.layout import ModelInput, Sequences, layout_on, model_input
from rlinf.models.causal_lm.load import check_logits, load_causal_lm
from rlinf.models.causal_lm.logprobs import token_logprobs
from rlinf.models.causal_lm.quick_norm import quicken_norms
from rlinf.models.deferred import DeferredWeights
from rlinf.models.lora import (
    Whole,
    adapter_shards,
    adapter_tensors,
    add_adapters,
    merged_shards,
    merged_tensors,
)
from rlinf.utils.shards import Shards


class CausalLM(nn.Module):
    """Wraps a language model of transformers, with or without adapters and value head.

    Args:
        lm: the model; one of peft if it has adapters.
        layout: `packed`, `padded` or `auto`, see `layout_on`.
        attn_implementation: attention of padded rows.
        chunk_tokens: tokens whose logits exist at a time; None picks by memory.
        value_head: whether to add a value function on the last hidden states. It begins as zero.

    Attributes:
        lm: the model.
        value_head: the value function, or None.
        has_adapters: whether only adapters are trained.
    """

    def __init__(
        self,
        lm: nn.Module,
        *,
        layout: str = "auto",
        attn_implementation: str = "sdpa",
        chunk_tokens: int | None = None,
        value_head: bool = False,
    ) -> None:
        super().__init__()
        self.lm = lm
        self.has_adapters = hasattr(lm, "get_base_model")
        plain = self.plain
        check_logits(plain.config)
        self._layout, self._attention, self._chunk = layout, attn_implementation, chunk_tokens
        self._no_split_modules = list(plain._no_split_modules or ())
        self.value_head: nn.Linear | None = None
        if value_head:
            self.add_value_head()

    def add_value_head(self) -> None:
        """Add a value function that begins as zero, if there is none yet."""
        if self.value_head is None:
            self.value_head = nn.Linear(self.plain.config.hidden_size, 1, dtype=torch.float32)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)

    @property
    def plain(self) -> nn.Module:
        """The model of transformers, whose layers may have adapters in them."""
        return self.lm.get_base_model() if self.has_adapters else self.lm

    @staticmethod
    def is_value_parameter(name: str) -> bool:
        """Return whether a parameter of this name belongs to the value head."""
        return name.startswith("value_head.")

    def enable_gradient_checkpointing(self, use_reentrant: bool = False) -> None:
        """Let layers recompute their activations in the backward pass."""
        self.plain.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        if self.has_adapters and use_reentrant:
            # That form passes gradients on only if the input of a layer has one.
            self.plain.enable_input_require_grads()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the layers, which share their code, and leave what is around them.

        Args:
            *args: passed on to `torch.compile`.
            **kwargs: passed on to `torch.compile`.
        """
        names = set(self._no_split_modules)
        for module in self.modules():
            # A sharded module has a class of its own, made of the one that it was.
            if names & {cls.__name__ for cls in type(module).__mro__}:
                module.forward = torch.compile(module.forward, *args, **kwargs)

    def forward(
        self,
        sequences: Sequences,
        *,
        temperature: float = 1.0,
        compute_logprobs: bool = True,
        compute_entropy: bool = False,
        compute_values: bool = False,
        use_adapters: bool = True,
    ) -> dict[str, Tensor]:
        """Compute what is asked for each of the R response tokens of n sequences.

        Args:
            sequences: what to read.
            temperature: divides the logits.
            compute_logprobs: whether to compute log-probabilities.
            compute_entropy: whether to compute the entropy of each token's distribution.
            compute_values: whether to compute the value of the state before each token.
            use_adapters: false is the model without what its adapters have learnt.

        Returns:
            `logprobs`, `entropy`, `values`, as asked for, float32 `[R]` each.
        """
        plain = self.plain
        head = plain.get_output_embeddings()
        layout = self.layout_on(head.weight.device)
        self._set_attention(plain, layout)
        inputs = model_input(sequences, layout, head.weight.device)
        with self._adapters(use_adapters):
            hidden = self._hidden(plain, inputs)
        out: dict[str, Tensor] = {}
        if compute_logprobs or compute_entropy:
            logprobs, entropy = token_logprobs(
                hidden,
                head.weight,
                inputs.targets,
                bias=getattr(head, "bias", None),
                temperature=temperature,
                compute_entropy=compute_entropy,
                chunk_tokens=self._chunk,
            )
            out["logprobs"] = logprobs
            if entropy is not None:
                out["entropy"] = entropy
        if compute_values:
            if self.value_head is None:
                raise ValueError("values were asked of a model without a value head")
            with torch.autocast(hidden.device.type, enabled=False):
                weight, bias = self.value_head.weight, self.value_head.bias
                out["values"] = (hidden.float() @ weight.float().T).squeeze(-1) + bias.float()
        return out

    def layout_on(self, device: torch.device) -> str:
        """Return how sequences are laid out on a device: `packed` or `padded`.

        Args:
            device: where the model is, or is to be.
        """
        return layout_on(device, self._layout, self._attention)

    def _set_attention(self, plain: nn.Module, layout: str) -> None:
        """Choose the attention that goes with a layout."""
        name = attention.NAME if layout == "packed" else self._attention
        if plain.config._attn_implementation != name:
            plain.set_attn_implementation(name)

    def _hidden(self, plain: nn.Module, inputs: ModelInput) -> Tensor:
        """Return the last hidden states before each response token, `[R, H]`."""
        packed = {} if inputs.packed is None else {"packed": inputs.packed}
        out = plain.base_model(
            input_ids=inputs.input_ids,
            position_ids=inputs.position_ids,
            use_cache=False,
            **packed,
        )
        return out.last_hidden_state.flatten(0, 1).index_select(0, inputs.places)

    def _adapters(self, use: bool) -> contextlib.AbstractContextManager:
        if use or not self.has_adapters:
            return contextlib.nullcontext()
        return self.lm.disable_adapter()

    # -- weights --------------------------------------------------------------------------------

    def policy_tensors(self, whole: Whole, adapters: bool = False) -> Iterator[tuple[str, Tensor]]:
        """What an engine needs to generate, under the names of the plain model.

        Args:
            whole: makes a whole tensor of a shard; every rank has to iterate.
            adapters: adapters alone, under the names of peft's files, instead of merged weights.
        """
        return adapter_tensors(self.lm, whole) if adapters else merged_tensors(self.lm, whole)

    def policy_shards(self, whole: Whole, adapters: bool = False) -> Shards:
        """Return the same as sharded as it is in the model; every rank has to call this."""
        return adapter_shards(self.lm) if adapters else merged_shards(self.lm, whole)

    def base_shards(self, whole: Whole) -> Shards:
        """Return merged weights without what adapters have learnt, as `policy_shards`."""
        return merged_shards(self.lm, whole, use_adapters=False)

    def save_folder(self, folder: str | Path, tensors: dict[str, Tensor]) -> None:
        """Write a model folder of Hugging Face layout.

        Args:
            folder: made if absent.
            tensors: of `policy_tensors`, whole and merged.
        """
        plain = self.plain
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        with torch.device("meta"):
            shell = type(plain)(plain.config)
        shell.generation_config = plain.generation_config
        # Names that are absent are tied to others.
        shell.load_state_dict(state, strict=False, assign=True)
        shell.tie_weights()
        shell.save_pretrained(folder)


def build_causal_lm(
    cfg: Any, torch_dtype: torch.dtype, deferral: DeferredWeights | None = None
) -> CausalLM:
    """Build the model that a section describes.

    Args:
        cfg: the model section, complete.
        torch_dtype: number format of the weights.
        deferral: what is told where weights come from, instead of loading them; None loads them.
    """
    attention.register()
    lm = load_causal_lm(cfg, torch_dtype, deferral)
    quicken_norms(lm)
    if cfg.is_lora:
        lm = add_adapters(lm, cfg, deferral)
    return CausalLM(
        lm,
        layout=cfg.sequence_layout,
        attn_implementation=cfg.attn_implementation,
        chunk_tokens=cfg.logits_chunk_tokens,
        value_head=cfg.add_value_head,
    )
