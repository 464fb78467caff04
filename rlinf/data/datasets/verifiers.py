"""Questions of an environment of the `verifiers` package."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf.agents.verifiers_loop import load_verifiers
from rlinf.data.datasets import register_dataset
from rlinf.data.datasets.base import PromptDataset, Record, Split


@register_dataset("verifiers")
class VerifiersDataset(PromptDataset):
    """Rows of the dataset of an environment, for `agentloop.type: verifiers`.

    Training takes its `get_dataset`, validation its `get_eval_dataset`. What rows hold besides the
    prompt goes into `metadata["verifiers"]`, from where the environment gets it back.
    """

    def __init__(self, cfg: Any, split: Split, seed: int) -> None:
        super().__init__(cfg, split, seed)
        arguments = cfg.environment_args
        if isinstance(arguments, DictConfig):
            arguments = OmegaConf.to_container(arguments, resolve=True)
        env = load_verifiers(cfg.environment, arguments)
        rows = env.get_dataset() if split == "train" else env.get_eval_dataset(cfg.val_size)
        self._rows = list(rows)
        if not self._rows:
            raise ValueError(
                f"the environment {cfg.environment!r} of verifiers has no rows to "
                f"{'train on' if split == 'train' else 'evaluate with'} (data.environment)"
            )

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._rows)

    def __getitem__(self, index: int) -> Record:
        """Record `index`."""
        row = dict(self._rows[index])
        prompt = row.pop("prompt")
        if not isinstance(prompt, str):
            prompt = [{"role": each["role"], "content": each["content"]} for each in prompt]
        answer = row.get("answer", "")
        return Record(prompt, answer, self.cfg.environment, {"verifiers": row})
