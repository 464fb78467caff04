"""Keys that the built-in rewards add to `reward`."""

from __future__ import annotations

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Int, Section


class CodeKeys(Section):
    """Keys of the reward that runs programs in a sandbox."""

    memory_limit_mb: Int = Field(512, gt=0, description="Memory of one program (MiB).")
    max_tests: Int | None = Field(None, gt=0, description="Most tests per program; null is all.")


register_schema("reward", "code", CodeKeys)
for _name in ("math", "searchr1", "vqa", "reasoning_gym"):
    register_schema("reward", _name, None)
