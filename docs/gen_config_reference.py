"""Writes the configuration reference page from the schema.

Run `python docs/gen_config_reference.py` to write `docs/reference/configuration.md`.
"""

from __future__ import annotations

from pathlib import Path

from rlinf.config import config_reference_markdown

TARGET = Path(__file__).resolve().parent / "reference" / "configuration.md"


def generate(target: Path = TARGET) -> Path:
    """Writes the page and returns its path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(config_reference_markdown(), encoding="utf-8")
    return target


if __name__ == "__main__":
    print(generate())
