"""Sphinx configuration of the user documentation."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from gen_gallery import draw_pictures  # noqa: E402

from rlinf import __version__  # noqa: E402
from rlinf.config import config_reference_markdown  # noqa: E402

project = "RLinf"
copyright = "the RLinf contributors"
release = version = __version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"RLinf {release}"

# The reference page comes from the schema that checks configs, so the two cannot differ.
_reference = HERE / "reference" / "configuration.md"
_reference.parent.mkdir(exist_ok=True)
_text = config_reference_markdown()
if not _reference.exists() or _reference.read_text(encoding="utf-8") != _text:
    _reference.write_text(_text, encoding="utf-8")

# So do the pictures of the gallery, from the curves that `rlinf verify` compares with.
draw_pictures()
