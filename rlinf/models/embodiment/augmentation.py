"""Random changes of the pictures that a policy learns from in supervised training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from rlinf.models.embodiment.cameras import camera_groups
from rlinf.models.embodiment.cnn_policy.images import shifted, whole_shifts

if TYPE_CHECKING:
    from omegaconf import DictConfig

_KEYS = ("random_shift", "random_crop", "brightness_jitter", "contrast_jitter")


@dataclass(frozen=True)
class CameraAugmentation:
    """Shifts, crops and colours of the first cameras, of each picture by itself.

    Noise that belongs to a sample says what happens to it. So it is the same whatever the
    micro-batch and the rank, and again in a run that was resumed.

    Attributes:
        cameras: Cameras that the policy looks at.
        random_shift: Greatest shift in pixels; 0 does not shift.
        random_crop: Smallest share of height and width that is left; 1 does not crop.
        brightness_jitter: Colours are multiplied by 1 minus to 1 plus this; 0 does not.
        contrast_jitter: Distances from the mean colour, in the same way; 0 does not.
    """

    cameras: int = 0
    random_shift: int = 0
    random_crop: float = 1.0
    brightness_jitter: float = 0.0
    contrast_jitter: float = 0.0

    @classmethod
    def of(cls, cfg: DictConfig) -> CameraAugmentation:
        """Read a model section with the keys of `AugmentationKeys`.

        Raises:
            ValueError: Something is to be done, and there are no cameras.
        """
        made = cls(cfg.num_images_in_input, *(cfg[key] for key in _KEYS))
        if made._per_picture and not made.cameras:
            on = [key for key in _KEYS if cfg[key] != getattr(cls, key)]
            raise ValueError(
                f"model.{on[0]} is {cfg[on[0]]}, and model.num_images_in_input is 0: there are no "
                "pictures to change; set one of the two to something else"
            )
        return made

    @property
    def width(self) -> int:
        """Numbers of noise that a sample takes; 0 leaves pictures as they are."""
        return self.cameras * self._per_picture

    def __call__(
        self,
        observations: Mapping[str, Any],
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Mapping[str, Any]:
        """Return observations with changed pictures of the cameras, of the same size and type.

        Of several further views, those that belong to no camera are left out.

        Args:
            observations: As in `BasePolicy.predict_action_batch`, n samples.
            noise: Standard normal, `[n, width]`; None draws it.
            generator: Where noise is drawn from.
        """
        if not self.width:
            return observations
        groups = camera_groups(observations, self.cameras)
        if noise is None:
            count, device = len(next(iter(groups.values()))), generator and generator.device
            noise = torch.randn(count, self.width, generator=generator, device=device)
        draws = iter(noise.float().unflatten(1, (self.cameras, -1)).unbind(1))
        changed = {}
        for key, views in groups.items():
            own = torch.stack([self._changed(view, next(draws)) for view in views.unbind(1)], 1)
            changed[key] = own if observations[key].ndim == own.ndim else own.squeeze(1)
        return {**observations, **changed}

    @property
    def _per_picture(self) -> int:
        colours = bool(self.brightness_jitter) + bool(self.contrast_jitter)
        return 2 * bool(self.random_shift) + 3 * (self.random_crop < 1) + colours

    def _changed(self, pictures: Tensor, noise: Tensor) -> Tensor:
        """Return pictures `[n, H, W, 3]` uint8, changed as noise `[n, D]` says."""
        noise = noise.to(pictures.device)
        shares = iter(torch.special.ndtr(noise).unbind(1))
        if self.random_shift:
            shift = whole_shifts(noise[:, :2], self.random_shift)
            pictures = shifted(pictures.unsqueeze(1), shift).squeeze(1)
            next(shares), next(shares)
        if self.random_crop < 1:
            share = 1 - (1 - self.random_crop) * next(shares)
            pictures = cropped(pictures, share, next(shares), next(shares))
        if self.brightness_jitter:
            factor = 1 + self.brightness_jitter * (2 * next(shares) - 1)
            pictures = _as_colours(pictures * factor[:, None, None, None])
        if self.contrast_jitter:
            factor = 1 + self.contrast_jitter * (2 * next(shares) - 1)
            # Sums of whole numbers are exact, whatever the batch.
            mean = pictures.sum((1, 2, 3), dtype=torch.int64) / pictures[0].numel()
            mean, factor = mean[:, None, None, None], factor[:, None, None, None]
            pictures = _as_colours((pictures - mean) * factor + mean)
        return pictures


def cropped(pictures: Tensor, share: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Return parts of pictures, scaled to the size of the whole.

    Args:
        pictures: `[n, H, W, C]` uint8.
        share: Of height and width that is left, `[n]`.
        down: Where the part is, from 0 (top) to 1 (bottom), `[n]`.
        right: The same, from 0 (left) to 1, `[n]`.

    Returns:
        `[n, H, W, C]` uint8.
    """
    _, height, width, _ = pictures.shape

    def places(count: int, begin: Tensor) -> Tensor:
        """Return the centres of pixels in coordinates of the whole, -1 to 1, `[n, count]`."""
        centres = (torch.arange(count, device=pictures.device) + 0.5) / count
        return 2 * (begin * (1 - share))[:, None] + 2 * centres * share[:, None] - 1

    rows, columns = places(height, down), places(width, right)
    grid = torch.stack(
        [
            columns[:, None, :].expand(-1, height, -1),
            rows[:, :, None].expand(-1, -1, width),
        ],
        -1,
    )
    planes = pictures.permute(0, 3, 1, 2).float()
    planes = functional.grid_sample(planes, grid, padding_mode="border", align_corners=False)
    return _as_colours(planes.permute(0, 2, 3, 1)).contiguous()


def _as_colours(numbers: Tensor) -> Tensor:
    return numbers.round().clamp(0, 255).to(torch.uint8)
