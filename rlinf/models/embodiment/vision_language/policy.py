"""Heads for actions and values on what a vision-language model makes of an observation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from rlinf.models.causal_lm.load import without_dropout
from rlinf.models.embodiment.actor_critic_policy import ActorCriticPolicy
from rlinf.models.embodiment.adapters import add_adapters
from rlinf.models.embodiment.augmentation import CameraAugmentation
from rlinf.models.embodiment.cameras import camera_views
from rlinf.models.embodiment.cnn_policy.images import scaled
from rlinf.models.embodiment.flow_vla.prompts import Prompts
from rlinf.models.embodiment.head_settings import HeadSettings
from rlinf.models.settings import needed

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rlinf.models.deferred import DeferredWeights
    from rlinf.utils.env_spec import EnvSpec


class VisionLanguagePolicy(ActorCriticPolicy):
    """Acts on features that a model of transformers has of instruction and cameras.

    Subclasses make the model and say in `encode` how it is called. Heads, their distribution,
    values, supervised losses, Q-functions and normalised states are those of `ActorCriticPolicy`.
    Texts become token ids where the policy acts, and only ids travel to the learner.

    Attributes:
        vlm: The model. With `is_lora` it is frozen, and its linear layers have adapters.
        prompts: Makes token ids of instructions; `prompts.pad` is the id of padding.
    """

    keeps_first_statistics: ClassVar[bool] = True
    output_layer: ClassVar[str] = ""
    """No layer of the model has a weight that is used without calling it; see `Adaptable`."""

    def __init__(
        self,
        cfg: DictConfig,
        torch_dtype: torch.dtype,
        vlm: nn.Module,
        tokenizer: Any,
        env_spec: EnvSpec | None = None,
        deferral: DeferredWeights | None = None,
    ) -> None:
        """Make the heads on a model, and its adapters if they are asked for.

        Args:
            cfg: The model section, with the keys of `VisionLanguageKeys`.
            torch_dtype: Number format of the weights.
            vlm: The model, with its weights. Dropout is turned off: what the rollout computed has
                to be computed again. Its `config` says its sizes.
            tokenizer: Of that model.
            env_spec: Says the range of actions, and the instructions.
            deferral: As the builder is given it; see `rlinf.models.register_model`.

        Raises:
            ValueError: A size is not known, or an instruction cannot be read.
        """
        if "{task}" not in cfg.prompt:
            raise ValueError(
                f"model.prompt is {cfg.prompt!r}, which has no place for the instruction: write "
                "{task} where it belongs"
            )
        obs_dim = needed(cfg, "obs_dim") if cfg.use_proprio else None
        width = vlm.config.get_text_config().hidden_size + (obs_dim or 0)
        settings = HeadSettings.of(cfg)
        super().__init__(width, obs_dim, needed(cfg, "action_dim"), settings, env_spec)
        self.obs_dim = obs_dim
        without_dropout(vlm)
        self.vlm = vlm
        self.num_images = cfg.num_images_in_input
        self.augmentation = CameraAugmentation.of(cfg)
        template = partial(_prompt, cfg.prompt)
        self.prompts = Prompts(tokenizer, template, cfg.max_prompt_length, left=True)
        # A word that is not known is told now, and not in the first rollout.
        self.prompts(getattr(env_spec, "instructions", ()))
        self.to(torch_dtype)
        if cfg.is_lora:
            add_adapters(self, cfg, deferral)

    @abstractmethod
    def encode(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return what the model makes of instructions and pictures, `[n, H]`.

        Args:
            inputs: `input_ids` `[n, L]`, padded on the left with `prompts.pad`; with cameras
                `images` `[n, V, S, S, 3]` uint8, S being the `image_size` of the vision config.
        """

    def policy_inputs(self, env_obs: Mapping[str, Any], augment: bool) -> dict[str, Tensor]:
        """See `ActorCriticPolicy.policy_inputs`; rollouts are not augmented."""
        inputs = {"input_ids": self.prompts(env_obs.get("task_descriptions")).to(self.device)}
        if self.obs_dim is not None:
            inputs["states"] = self._states(env_obs, self.obs_dim)
        if self.num_images:
            size = self.vlm.config.vision_config.image_size
            views = camera_views(env_obs, self.num_images)
            views = [scaled(view.to(self.device).unsqueeze(1), size) for view in views]
            inputs["images"] = torch.cat(views, 1)
        return inputs

    @property
    def sft_noise_width(self) -> int:
        """See `BasePolicy.sft_noise_width`: what pictures are changed by."""
        return self.augmentation.width

    def sft_inputs(
        self, observations: Mapping[str, Any], augment: bool, noise: Tensor | None
    ) -> dict[str, Tensor]:
        """See `ActorCriticPolicy.sft_inputs`."""
        if augment:
            observations = self.augmentation(observations, noise, self.generator)
        return self.policy_inputs(observations, augment=False)

    def features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """See `ActorCriticPolicy.features`: what the model made, then normalised states."""
        seen = self.encode(inputs)
        if self.obs_dim is None:
            return seen
        states = inputs["states"]
        states = states if self.normalizer is None else self.normalizer(states)
        return torch.cat([seen, states.to(seen.dtype)], 1)

    def is_base(self, name: str) -> bool:
        """Return whether a weight is one of the model; the heads are trained in full."""
        return name.startswith("vlm.")


def _prompt(template: str, task: str, state: Sequence[int] | None) -> str:
    return template.format(task=task)
