"""Draws the curves of the gallery, and writes the results into it.

Run `python docs/gen_gallery.py` after `python -m benchmarks.learning --write`: lines of
`docs/gallery.md` that begin with "- Result:" are written anew from the curve files. The build of
the documentation draws the pictures, into `docs/images/curves`.
"""

from __future__ import annotations

import re
from pathlib import Path

import curve_svg

from rlinf.cli import curves
from rlinf.cli.curves import CurveFile

HERE = Path(__file__).resolve().parent
PAGE, PICTURES = HERE / "gallery.md", HERE / "images" / "curves"
_ENTRY = re.compile(r"^rlinf train (\w+)", re.MULTILINE)
_RESULT = re.compile(r"^- Result:.*(?:\n.+)*", re.MULTILINE)


def curve_files(examples: Path = HERE.parent / "examples") -> dict[str, CurveFile]:
    """Return the curve files of all recipes, by name."""
    folders = sorted(examples.glob("*/config"))
    return {
        name: curves.load(curves.path_for(folder, name))
        for folder in folders
        for name in curves.recipes_with_curves([folder])
    }


def result(file: CurveFile) -> str:
    """Return what the seeds reached at the end, in a sentence."""
    success = file.metric == "success_once"
    finals = [curve.values[file.metric][-1] for curve in file.curves.values()]
    told = [f"{value:.0%}".replace("%", " %") if success else f"{value:,.0f}" for value in finals]
    episodes = next(iter(file.curves.values())).episodes[-1]
    what = f"of {episodes} held-out starts solved" if success else f"mean return of {episodes}"
    what += "" if success else " held-out episodes"
    if len(set(told)) == 1:
        by = f"{told[0]} {what} with each of {len(told)} seeds"
    else:
        by = f"{', '.join(told)} {what}, by seed"
    return f"- Result: {by}, after {file.steps[-1]:,} {file.unit}."


def with_results(page: str, files: dict[str, CurveFile]) -> str:
    """Return the page with the results of the curve files, entry by entry."""
    parts = re.split(r"(?m)^(?=## )", page)
    for number, part in enumerate(parts):
        named = [name for name in _ENTRY.findall(part) if name in files]
        if named:
            text = result(files[named[0]])
            parts[number] = _RESULT.sub(lambda _, text=text: text, part, count=1)
    return "".join(parts)


def draw_pictures(folder: Path = PICTURES) -> list[Path]:
    """Draw the curves of all recipes; return the files. Those that are right stay untouched."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, file in curve_files().items():
        target, picture = folder / f"{name}.svg", curve_svg.draw(file)
        if not target.is_file() or target.read_text(encoding="utf-8") != picture:
            target.write_text(picture, encoding="utf-8")
        written.append(target)
    return written


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_results(page, curve_files()), encoding="utf-8")
    print(f"{PAGE}, and {len(draw_pictures())} pictures in {PICTURES}")
