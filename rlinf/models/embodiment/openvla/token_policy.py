"""What policies that act by tokens share: inputs, distributions, values, and how they learn.

Shapes: B envs, n samples, C actions that are carried out, A numbers in an action, H actions that
are planned, D tokens of some of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from rlinf.models.embodiment.augmentation import CameraAugmentation
from rlinf.models.embodiment.base_policy import ActionRange, BasePolicy, ForwardType, Mode
from rlinf.models.embodiment.cameras import camera_views
from rlinf.models.embodiment.cnn_policy.images import scaled
from rlinf.models.embodiment.distributions import Categorical
from rlinf.models.embodiment.layers import MLP
from rlinf.models.embodiment.normalizer import NormalizedStates, ObsNormalizer
from rlinf.models.embodiment.openvla.bins import ActionBins
from rlinf.models.embodiment.openvla.network import OpenVLANetwork, Prefix
from rlinf.models.embodiment.openvla.prompts import PromptEncoder


@dataclass(frozen=True)
class TokenSettings:
    """How tokens become actions and values; the config keys of the same names."""

    num_action_chunks: int = 1
    action_horizon: int | None = None
    temperature: float = 1.0
    eval_tokens: str = "likeliest"
    num_images_in_input: int = 0
    add_value_head: bool = False
    value_type: str = "chunk_level"
    value_hidden_sizes: Sequence[int] = (256,)
    detach_critic_input: bool = False
    normalize_obs: bool = True
    obs_clip: float = 10.0
    unnorm_key: str | None = None
    augmentation: CameraAugmentation = field(default_factory=CameraAugmentation)


class Tokens(NamedTuple):
    """What the network says of action tokens.

    Attributes:
        logits: Of the bins, `[n, D, N]` float32.
        hidden: The states that they come from, `[n, D, H]`.
    """

    logits: Tensor
    hidden: Tensor


class TokenPolicy(NormalizedStates, BasePolicy):
    """Each number of an action is a token, drawn from a categorical distribution over bins.

    Logits of all other tokens count as minus infinity. Subclasses say in which order tokens come
    to be. H actions are planned, and the first C of them are carried out: only their tokens are
    drawn, and have log-probabilities. Supervised training learns all of them.

    Attributes:
        network: Vision towers, projectors and language model.
        bins: Between tokens and actions.
        prompts: Makes token ids of instructions.
        vocabulary: Tokens of the vocabulary, bins included; the embedding may have more rows.
    """

    forward_types: ClassVar[tuple[ForwardType, ...]] = (ForwardType.DEFAULT, ForwardType.SFT)
    _no_split_modules: ClassVar[list[str]] = ["LlamaDecoderLayer", "Block"]

    def __init__(
        self,
        network: OpenVLANetwork,
        bins: ActionBins,
        prompts: PromptEncoder,
        vocabulary: int,
        state_dim: int | None,
        settings: TokenSettings,
        action_range: ActionRange | None = None,
    ) -> None:
        """Put the parts together.

        Args:
            network: See `OpenVLANetwork`.
            bins: See `ActionBins`.
            prompts: See `PromptEncoder`.
            vocabulary: Tokens, bins included.
            state_dim: S, numbers in `states`; None does not use them.
            settings: See `TokenSettings`.
            action_range: What the env takes; actions are clipped to it.

        Raises:
            ValueError: Fewer actions are planned than carried out.
        """
        super().__init__(len(bins.low), settings.num_action_chunks, action_range)
        if self.num_action_chunks > (settings.action_horizon or self.num_action_chunks):
            raise ValueError(
                f"action_horizon {settings.action_horizon} is below num_action_chunks "
                f"{self.num_action_chunks}: only what is planned can be carried out"
            )
        self.network, self.bins, self.prompts = network, bins, prompts
        self.vocabulary, self.state_dim, self.settings = vocabulary, state_dim, settings
        self.normalizer = None
        if settings.normalize_obs and state_dim is not None:
            self.normalizer = ObsNormalizer(state_dim, settings.obs_clip, keeps_first=True)
        self.value_head = None
        if settings.add_value_head:
            sizes = tuple(settings.value_hidden_sizes)
            self.value_head = MLP(network.hidden_size, sizes, 1, "silu")

    @property
    def device(self) -> torch.device:
        """Where the policy computes."""
        return self.bins.low.device

    @property
    def action_horizon(self) -> int:
        """See `BasePolicy.action_horizon`."""
        return self.settings.action_horizon or self.num_action_chunks

    @abstractmethod
    def teacher_forced(self, inputs: Mapping[str, Tensor], action: Tensor) -> Tokens:
        """Return what the network says of given tokens, each after those before it.

        Args:
            inputs: As `policy_inputs` returns them.
            action: Indices of bins, `[n, D]`: those of the first actions, at most H*A.
        """

    @abstractmethod
    def generate(self, inputs: Mapping[str, Tensor], noise: Tensor | None) -> tuple[Tensor, Tokens]:
        """Choose the tokens of the actions that are carried out.

        Args:
            inputs: As `policy_inputs` returns them.
            noise: Standard normal, `[n, C*A]`; None takes the likeliest.

        Returns:
            Indices of bins `[n, C*A]`, and what the network says of them.
        """

    def policy_inputs(self, env_obs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return what of the observations is needed to recompute, on the policy's device.

        Texts become token ids here, and only those travel on.

        Args:
            env_obs: As in `predict_action_batch`.

        Returns:
            `input_ids` [B, L]; `states` [B, S] if used; `images` [B, V, H, W, 3] uint8 if used.
        """
        device = self.device
        inputs = {"input_ids": self.prompts(env_obs.get("task_descriptions")).to(device)}
        if self.state_dim is not None:
            inputs["states"] = self._states(env_obs)
        if self.settings.num_images_in_input:
            inputs["images"] = self._images(env_obs)
        return inputs

    def distribution(self, tokens: Tokens) -> Categorical:
        """Return the distribution that rollouts draw from, temperature applied."""
        return Categorical(tokens.logits / self.settings.temperature)

    def default_forward(
        self,
        forward_inputs: Mapping[str, Tensor],
        compute_logprobs: bool = True,
        compute_entropy: bool = False,
        compute_values: bool = False,
    ) -> dict[str, Tensor | None]:
        """See `BasePolicy.default_forward`."""
        action = forward_inputs["action"]
        tokens = self.teacher_forced(forward_inputs, action)
        actions = self.distribution(tokens)
        return {
            "logprobs": actions.log_prob(action) if compute_logprobs else None,
            "entropy": actions.entropy() if compute_entropy else None,
            "values": self._values(tokens) if compute_values else None,
        }

    @property
    def cloned_by_likelihood(self) -> bool:
        """See `BasePolicy.cloned_by_likelihood`: tokens are choices."""
        return True

    @property
    def sft_noise_width(self) -> int:
        """See `BasePolicy.sft_noise_width`: what pictures are changed by."""
        return self.settings.augmentation.width

    def sft_forward(
        self,
        observations: Mapping[str, Any],
        actions: Tensor,
        augment: bool = True,
        noise: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Compare, with gradients, what the policy would do with what was done.

        Args:
            observations: As in `predict_action_batch`, any number n of samples.
            actions: What was done, in the units of the env, [n, h, A]; h is H, or less.
            augment: Change pictures at random, if the policy was built so.
            noise: Standard normal, [n, sft_noise_width]; None draws it from the generator.

        Returns:
            `logprobs`, log-probabilities of the tokens of the actions (the loss is their
            cross-entropy), and `errors`, how far the likeliest actions are from them, in parts of
            half the range of bins, without gradients. Each [n, h*A] float32.

        Raises:
            ValueError: There are more actions than are planned.
        """
        if actions.shape[1] > self.action_horizon:
            raise ValueError(
                f"{actions.shape[1]} actions follow an observation, and {self.action_horizon} are "
                f"planned: set model.action_horizon to {actions.shape[1]}"
            )
        index = self.bins.encode(actions)
        if augment:
            observations = self.settings.augmentation(observations, noise, self.generator)
        tokens = self.teacher_forced(self.policy_inputs(observations), index)
        own = Categorical(tokens.logits)
        with torch.no_grad():
            likeliest = self.bins.normalize(self.bins.decode(own.mode()))
            errors = (likeliest - self.bins.normalize(actions)).flatten(1)
        return {"logprobs": own.log_prob(index), "errors": errors}

    @torch.no_grad()
    def predict_action_batch(
        self,
        env_obs: Mapping[str, Any],
        mode: Mode = "train",
        noise: Tensor | None = None,
        **sampling: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """See `BasePolicy.predict_action_batch`.

        Args:
            env_obs: Observations.
            mode: `train` draws tokens; `eval` takes what `eval_tokens` says; `random` draws bins
                uniformly.
            noise: Standard normal noise to draw with, [B, C*A]; None draws it from the policy's
                generator.
            **sampling: None are known.

        Returns:
            Actions and what is needed to train on them.
        """
        self._check_call(mode, sampling)
        inputs = self.policy_inputs(env_obs)
        shape = len(inputs["input_ids"]), self.num_action_chunks * self.action_dim
        if mode == "eval":
            # Draws invert the distribution function: without noise, they are its median.
            is_median = self.settings.eval_tokens == "median"
            noise = torch.zeros(shape, device=self.device) if is_median else None
        elif noise is None:
            noise = torch.randn(shape, generator=self.generator, device=self.device)
        if mode == "random":
            share = torch.special.ndtr(noise) * self.bins.count
            action = share.long().clamp(max=self.bins.count - 1)
            tokens = self.teacher_forced(inputs, action)
        else:
            action, tokens = self.generate(inputs, noise)
        inputs["action"] = action
        result = {
            "prev_logprobs": self.distribution(tokens).log_prob(action),
            "prev_values": self._values(tokens),
            "forward_inputs": inputs,
        }
        return self._to_env(action), result

    def replay_inputs(self, env_obs: Mapping[str, Any]) -> dict[str, Tensor]:
        """See `BasePolicy.replay_inputs`."""
        return self.policy_inputs(env_obs)

    def prefix(self, inputs: Mapping[str, Tensor]) -> Prefix:
        """Return what stands before the actions of sequences."""
        states, prompts = inputs.get("states"), self.prompts
        if states is not None and self.normalizer is not None:
            states = self.normalizer(states)
        return self.network.prefix(
            inputs["input_ids"], prompts.pad, prompts.bos, prompts.eos, inputs.get("images"), states
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits of the bins, `[..., N]`."""
        return self.network.logits(hidden, self.vocabulary, self.bins.count)

    def _to_env(self, action: Tensor) -> Tensor:
        actions, own = self.bins.decode(action), self.action_range
        if not own.clip:
            return actions
        return torch.clamp(actions, *(actions.new_tensor(bound) for bound in (own.low, own.high)))

    def _values(self, tokens: Tokens) -> Tensor:
        """Return values `[n, 1]`, of the first token; or `[n, C]`, of the first of each action."""
        each = self.settings.value_type == "action_level"
        count = self.num_action_chunks if each else 1
        if self.value_head is None:
            return torch.zeros(len(tokens.hidden), count, device=tokens.hidden.device)
        seen = tokens.hidden[:, :: self.action_dim] if each else tokens.hidden[:, :1]
        if self.settings.detach_critic_input:
            seen = seen.detach()
        # A sum of one term; squeezing would give a view, which FSDP must not return.
        return self.value_head(seen).float().sum(-1)

    def _states(self, env_obs: Mapping[str, Any]) -> Tensor:
        states = env_obs.get("states")
        found = None if states is None else states.shape[-1]
        if found != self.state_dim:
            raise ValueError(
                f"the policy was built for {self.state_dim} numbers in 'states', and the "
                f"observations have {'none' if found is None else found}; set model.use_proprio to "
                "false to do without"
            )
        return torch.as_tensor(states, dtype=torch.float32, device=self.device)

    def _images(self, env_obs: Mapping[str, Any]) -> Tensor:
        """Return the pictures that are looked at, `[B, V, H, W, 3]` uint8 in the towers' size."""
        size = self.network.vision_backbone.featurizer.tower.image_size
        views = camera_views(env_obs, self.settings.num_images_in_input)
        views = [scaled(view.to(self.device).unsqueeze(1), size, "bicubic") for view in views]
        return torch.cat(views, 1)
