"""Weights on their way to a server: a folder per update, on storage that both ends see."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from rlinf.hybrid_engines.generation.vllm_weights import buckets

FILE_BYTES = 4 << 30
"""Bytes of a file; a larger tensor has one by itself."""


class WeightFolder:
    """Writes models in the layout of Hugging Face, of which the latest is kept.

    Args:
        place: Where folders are made.
        name: What their names begin with; nobody else uses it.
        model_path: Folder of the model, whose small files are copied.
        dtype: What weights are written in.
        file_bytes: See `FILE_BYTES`.
    """

    def __init__(
        self,
        place: str,
        name: str,
        model_path: str,
        dtype: torch.dtype,
        file_bytes: int = FILE_BYTES,
    ):
        self._place, self._name = Path(place), name
        self._model_path = Path(model_path)
        self._dtype = dtype
        self._file_bytes = file_bytes
        self._place.mkdir(parents=True, exist_ok=True)

    def write(self, tensors: dict[str, Tensor], label: str) -> str:
        """Write weights.

        Returns:
            The folder, which is there as a whole or not at all.
        """
        final = self._place / f"{self._name}-{label}"
        part = final.with_suffix(".part")
        part.mkdir()
        for file in sorted(self._model_path.iterdir()):
            if file.suffix in (".json", ".txt", ".model", ".jinja", ".py") and not (
                file.name.endswith(".index.json")
            ):
                shutil.copy(file, part / file.name)
        for place, group in enumerate(buckets(tensors.items(), self._dtype, self._file_bytes)):
            save_file(
                {name: self._plain(tensor) for name, tensor in group},
                part / f"model-{place:05d}.safetensors",
                metadata={"format": "pt"},
            )
        part.rename(final)
        self.remove(keep=final)
        return str(final)

    def _plain(self, tensor: Tensor) -> Tensor:
        kind = self._dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.detach().to("cpu", kind, copy=True).contiguous()

    def remove(self, keep: Path | None = None) -> None:
        """Remove what was written, but for one folder."""
        for folder in self._place.glob(f"{self._name}-*"):
            if folder != keep:
                shutil.rmtree(folder)
