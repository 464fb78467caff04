"""Draws the curves of the gallery, and writes the results into it.

Run `python docs/gen_gallery.py` after `python -m benchmarks.learning --write`: lines of
`docs/gallery.md` that begin with "- Result:" are written anew from the curve files. An entry whose
recipe had no curve file before gets its picture and its result. The build of the documentation
draws the pictures, into `docs/images/curves`.

    python docs/gen_gallery.py --film RECIPE=VIDEO

keeps a small film of a video of a run, `policy.mp4` in its folder, beside the curve file of a
recipe, and shows it in the recipe's entry.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Collection
from pathlib import Path

import curve_svg
import gallery_video

from rlinf.cli import curves
from rlinf.cli.curves import CurveFile
from rlinf.cli.runs.score import RATES

HERE = Path(__file__).resolve().parent
PAGE, PICTURES = HERE / "gallery.md", HERE / "images" / "curves"
_ENTRY = re.compile(r"^rlinf train (\w+)", re.MULTILINE)
_RESULT = re.compile(r"^- Result:.*(?:\n.+)*", re.MULTILINE)
_NO_CURVE = "## Without a curve"


def curve_files(examples: Path = HERE.parent / "examples") -> dict[str, CurveFile]:
    """Return the curve files of all recipes, by name."""
    folders = sorted(examples.glob("*/config"))
    return {
        name: curves.load(curves.path_for(folder, name))
        for folder in folders
        for name in curves.recipes_with_curves([folder])
    }


def films(examples: Path = HERE.parent / "examples") -> dict[str, Path]:
    """Return the films of all recipes that have one, by name."""
    return {path.stem: path for path in sorted(examples.glob("*/curves/*.webp"))}


def add_film(name: str, video: Path, examples: Path = HERE.parent / "examples") -> Path:
    """Keep a film of a video of a recipe beside its curve file; return it.

    Raises:
        ValueError: The recipe has no curve file, or there is no film of the video.
    """
    found = sorted(examples.glob(f"*/curves/{name}.json"))
    if not found:
        raise ValueError(f"{name} has no curve file, so that no entry of the gallery shows it")
    target = found[0].with_suffix(".webp")
    gallery_video.make_film(video, target)
    return target


def result(file: CurveFile) -> str:
    """Return what the seeds reached at the end, in a sentence."""
    trials = next(iter(file.curves.values())).episodes[-1]
    what = {
        "success_once": f"of {trials} held-out starts solved",
        "pass@1": f"of {trials} held-out questions answered",
        "return": f"mean return of {trials} held-out episodes",
    }[file.metric]
    told = f"- Result: {_by_seed(file, file.metric, -1, f' {what}')}, after {file.steps[-1]:,} "
    told += file.unit
    if file.metric == "pass@1":
        told += f"; before the training {_by_seed(file, file.metric, 0)}"
    if all("pass@1_no_tools" in curve.values for curve in file.curves.values()):
        told += f"; with tools switched off {_by_seed(file, 'pass@1_no_tools', -1)}"
    return f"{told}."


def _by_seed(file: CurveFile, metric: str, place: int, what: str = "") -> str:
    """Return what each seed reached, or all of them if it is the same."""
    values = [curve.values[metric][place] for curve in file.curves.values()]
    rate = file.metric in RATES
    told = [_percent(value) if rate else f"{value:,.0f}" for value in values]
    if len(set(told)) == 1:
        return f"{told[0]}{what} with each of {len(told)} seeds"
    return f"{', '.join(told)}{what}, by seed"


def _percent(rate: float) -> str:
    """Return a rate in percent, with a decimal where it needs one: 99.5 % is not 100 %."""
    return f"{100 * rate:.1f}".removesuffix(".0") + " %"


def with_results(page: str, files: dict[str, CurveFile], filmed: Collection[str] = ()) -> str:
    """Return the page with the results of the curve files, entry by entry.

    Args:
        page: The page.
        files: By recipe.
        filmed: Recipes that have a film.
    """
    parts = re.split(r"(?m)^(?=## )", page)
    for number, part in enumerate(parts):
        named = [name for name in _ENTRY.findall(part) if name in files]
        if named and not part.startswith(_NO_CURVE):
            text = result(files[named[0]])
            part = _with_picture(part, named[0], files[named[0]])
            if named[0] in filmed:
                part = _with_film(part, named[0])
            parts[number] = _RESULT.sub(lambda _, text=text: text, part, count=1)
    return "".join(parts)


def _with_picture(entry: str, name: str, file: CurveFile) -> str:
    """Return an entry that has a picture, and a result to be written."""
    if "](images/curves/" in entry:
        return entry
    picture = f"![{curve_svg.title(file).capitalize()}](images/curves/{name}.svg)"
    return f"{entry.rstrip()}\n\n{picture}\n\n- Result:\n\n"


def _with_film(entry: str, name: str) -> str:
    """Return an entry that shows a film behind its picture."""
    picture, film = f"(images/curves/{name}.svg)", f"(images/curves/{name}.webp)"
    if film in entry:
        return entry
    shown = f"{picture}\n\n![An episode of an evaluation after the training]{film}"
    return entry.replace(picture, shown, 1)


def draw_pictures(folder: Path = PICTURES) -> list[Path]:
    """Draw the curves of all recipes, and put their films beside them; return the drawings.

    Those that are right stay untouched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, file in curve_files().items():
        target, picture = folder / f"{name}.svg", curve_svg.draw(file)
        if not target.is_file() or target.read_text(encoding="utf-8") != picture:
            target.write_text(picture, encoding="utf-8")
        written.append(target)
    for name, film in films().items():
        shutil.copyfile(film, folder / f"{name}.webp")
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--film", metavar="RECIPE=VIDEO", help="keep a film of a video of a recipe")
    given = parser.parse_args().film
    if given is not None:
        recipe, _, video = given.partition("=")
        try:
            print(add_film(recipe, Path(video)))
        except ValueError as error:
            raise SystemExit(f"error: {error}") from None
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_results(page, curve_files(), films()), encoding="utf-8")
    print(f"{PAGE}, and {len(draw_pictures())} pictures in {PICTURES}")
