"""The gallery has an entry for each curve of the source tree, and says what the curves say."""

from __future__ import annotations

import re
import sys
import wave
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf.cli.curves import Curve, gather
from rlinf.cli.recipes import list_recipes
from rlinf.config import build_config

ROOT = Path(__file__).resolve().parents[3]
EVALUATION = (
    "runner.eval_episodes",
    "runner.val_check_interval",
    "runner.eval_at_start",
    "data.val_size",
    "runner.log_interval",
    "runner.progress",
    "runner.logger.logger_backends",
    "env.eval.video_cfg.save_video",
)
"""Keys that change what is told of a training, and not the training."""


@pytest.fixture
def gallery(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import gen_gallery

    yield gen_gallery
    for name in ("gen_gallery", "curve_svg", "gallery_video"):
        sys.modules.pop(name)


@pytest.fixture
def page(gallery: Any) -> str:
    return gallery.PAGE.read_text(encoding="utf-8")


def commands_of(page: str) -> dict[str, list[str]]:
    """Return the overrides of the training of each entry, by recipe."""
    found = re.findall(r"^rlinf train (\w+)(.*)$", page, re.MULTILINE)
    assert len(found) == len({name for name, _ in found}), "a recipe has two entries"
    return {name: overrides.split() for name, overrides in found}


def test_each_curve_has_an_entry_with_its_picture(gallery: Any, page: str) -> None:
    known, recipes = set(gallery.curve_files()), {each.name: each.path for each in list_recipes()}
    filmed = set(gallery.films())
    assert filmed <= known, "a film needs a curve file"
    assert known <= set(commands_of(page)) <= set(recipes), "add an entry to docs/gallery.md"
    for entry in re.split(r"(?m)^## ", page)[1:-1]:
        (name,) = re.findall(r"^rlinf train (\w+)", entry, re.MULTILINE)
        pictures = [f"images/curves/{name}.svg"] if name in known else []
        shown = [*pictures, f"images/curves/{name}.webp"] if name in filmed else pictures
        assert re.findall(r"\((images/curves/.*)\)", entry) == shown
        assert entry.count("- Result: ") == len(pictures)
        collects = "\ncollect:" in recipes[name].read_text(encoding="utf-8")
        assert (f"rlinf collect {name}\n" in entry) == collects, name


def test_the_results_are_those_of_the_curves(gallery: Any, page: str) -> None:
    written = gallery.with_results(page, gallery.curve_files(), gallery.films())
    assert page == written, "run python docs/gen_gallery.py"


def test_a_command_trains_what_its_curve_shows(gallery: Any, page: str) -> None:
    commands = commands_of(page)
    for name, file in gallery.curve_files().items():
        made = [each for each in file.overrides if each.partition("=")[0] not in EVALUATION]
        if made != commands[name]:
            # Some overrides say what the recipe says, too.
            assert build_config(name, made) == build_config(name, commands[name]), name


def test_every_other_recipe_is_named_at_the_end(gallery: Any, page: str) -> None:
    kinds = ("embodiment", "reasoning", "agents", "coding_online_rl")
    folders = {ROOT / "examples" / name / "config" for name in kinds}
    recipes = {each.name for each in list_recipes() if each.path.parent in folders}
    rows = re.findall(r"(?m)^\| (`.*?) \|", page.split("## Without a curve")[1])
    named = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert named == recipes - set(commands_of(page))


def test_an_entry_gets_its_picture_with_its_first_curve(gallery: Any) -> None:
    values = {"pass@1": [0.25, 0.5, 0.9], "pass@1_no_tools": [0.0, 0.0, 0.0]}
    curves = {seed: Curve([0, 20, 40], [400] * 3, values, "training steps") for seed in (0, 1)}
    files = {"asks": gather("asks", [], curves, {})}
    page = "# G\n\n## A\n\n```bash\nrlinf train asks\n```\n\n## Without a curve\n\nrest\n"
    written = gallery.with_results(page, files)
    assert written == (
        "# G\n\n## A\n\n```bash\nrlinf train asks\n```\n\n"
        "![Pass@1 over training steps](images/curves/asks.svg)\n\n"
        "- Result: 90 % of 400 held-out questions answered with each of 2 seeds, after 40 training "
        "steps; before the training 25 % with each of 2 seeds; with tools switched off 0 % with "
        "each of 2 seeds.\n\n## Without a curve\n\nrest\n"
    )
    assert gallery.with_results(written, files) == written


def test_films_are_small_and_move(gallery: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    assert gallery.films(), "the gallery shows no episode"
    for path in gallery.films().values():
        assert path.stat().st_size <= gallery.gallery_video.MOST_BYTES, path
        with image.open(path) as film:
            assert film.n_frames >= 10, path


def write_video(path: Path, rate: int, count: int) -> None:
    """Write a video that becomes brighter and brighter."""
    av = pytest.importorskip("av")
    with av.open(path, "w") as opened:
        stream = opened.add_stream("h264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(count):
            frame = np.full((48, 64, 3), 4 * number, np.uint8)
            opened.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        opened.mux(stream.encode())


def test_a_film_of_a_slow_video_is_as_slow(gallery: Any, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    video, film = tmp_path / "policy.mp4", tmp_path / "film.webp"
    write_video(video, rate=4, count=9)
    gallery.gallery_video.make_film(video, film)
    lasts = 0
    with image.open(film) as opened:
        for number in range(opened.n_frames):
            opened.seek(number)
            opened.load()
            lasts += opened.info["duration"]
    # The last frame begins after two seconds.
    assert lasts == 2100


def test_a_film_that_cannot_be_made_leaves_the_old_one(
    gallery: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video, film = tmp_path / "policy.mp4", tmp_path / "film.webp"
    film.write_bytes(b"old")
    with wave.open(str(video), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(1600))
    with pytest.raises(ValueError, match=r"the video .*policy\.mp4 has no frames"):
        gallery.gallery_video.make_film(video, film)
    write_video(video, rate=10, count=3)
    monkeypatch.setattr(gallery.gallery_video, "MOST_BYTES", 10)
    with pytest.raises(ValueError, match="at the lowest quality, and may have 10"):
        gallery.gallery_video.make_film(video, film)
    assert film.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["film.webp", "policy.mp4"]


def test_a_film_is_made_of_a_video_and_shown_in_its_entry(gallery: Any, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    video, folder = tmp_path / "policy.mp4", tmp_path / "examples" / "some" / "curves"
    folder.mkdir(parents=True)
    write_video(video, rate=30, count=60)
    with pytest.raises(ValueError, match="some_recipe has no curve file"):
        gallery.add_film("some_recipe", video, folder.parents[1])
    (folder / "some_recipe.json").touch()
    with pytest.raises(ValueError, match=r"no video .*save_video is true has policy.mp4"):
        gallery.add_film("some_recipe", tmp_path / "no.mp4", folder.parents[1])
    path = gallery.add_film("some_recipe", video, folder.parents[1])
    assert gallery.films(folder.parents[1]) == {"some_recipe": path}
    # Two seconds at ten frames per second, brighter and brighter.
    with image.open(path) as film:
        assert film.size == (160, 120) and film.n_frames == 20
        seen = []
        for number in range(film.n_frames):
            film.seek(number)
            seen.append(float(np.asarray(film.convert("L")).mean()))
    assert np.allclose(seen, 12 * np.arange(20), atol=12) and seen == sorted(seen)
    files = {"some_recipe": curve_file([[0.0, 0.5, 1.0]] * 2, "success_once")}
    page = "# G\n\n## A\n\n```bash\nrlinf train some_recipe\n```\n\n## Without a curve\n"
    written = gallery.with_results(page, files, {"some_recipe"})
    curve, film = (written.index(f"](images/curves/some_recipe.{e})") for e in ("svg", "webp"))
    assert curve < film < written.index("- Result: 100 %")
    assert gallery.with_results(written, files, {"some_recipe"}) == written


def curve_file(values: list[list[float]], metric: str) -> Any:
    other = {"success_once": "return", "return": "success_once"}[metric]
    curves = {
        seed: Curve([100, 200, 300], [50] * 3, {metric: own, other: [0.0] * 3})
        for seed, own in enumerate(values)
    }
    return gather("some_recipe", [], curves, {})


def test_results_are_told_in_words(gallery: Any) -> None:
    alike = curve_file([[0.0, 0.5, 1.0], [0.2, 0.9, 1.0]], "success_once")
    assert gallery.result(alike) == (
        "- Result: 100 % of 50 held-out starts solved with each of 2 seeds, after 300 env steps."
    )
    apart = curve_file([[0.0, 5.0, 1234.4], [0.0, 9.0, -7.0]], "return")
    assert gallery.result(apart) == (
        "- Result: 1,234, -7 mean return of 50 held-out episodes, by seed, after 300 env steps."
    )


def test_pictures_show_the_curves(gallery: Any, tmp_path: Path) -> None:
    import curve_svg

    file = curve_file([[0.0, 0.5, 1.0], [0.0, 1.0, 0.5]], "success_once")
    root = ET.fromstring(curve_svg.draw(file))
    lines = {"seed": [], "mean": []}
    for element in root.iter("{http://www.w3.org/2000/svg}polyline"):
        pairs = (pair.split(",") for pair in element.get("points").split())
        lines[element.get("class")].append([(float(x), float(y)) for x, y in pairs])
    top, bottom = curve_svg.TOP, curve_svg.HEIGHT - curve_svg.BOTTOM
    middle = (top + bottom) / 2
    one, two = lines["seed"]
    assert [y for _, y in one] == [bottom, middle, top]
    assert [y for _, y in two] == [bottom, top, middle]
    (mean,) = lines["mean"]
    high = bottom - 0.75 * (bottom - top)
    assert [y for _, y in mean] == pytest.approx([bottom, high, high], abs=0.06)
    steps = [x for x, _ in mean]
    assert steps[1] - steps[0] == pytest.approx(steps[2] - steps[1], abs=0.11)
    labels = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"0%", "100%", "0", "300", "success over env steps"} <= set(labels)
    written = gallery.draw_pictures(tmp_path)
    assert [path.stem for path in written] == list(gallery.curve_files())
    for path in written:
        ET.fromstring(path.read_text())


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 48_000, [0, 10_000, 20_000, 30_000, 40_000, 50_000]), (-0.3, 1, [-0.5, 0, 0.5, 1])],
)
def test_ticks_are_round_and_hold_the_range(
    gallery: Any, low: float, high: float, expected: list[float]
) -> None:
    import curve_svg

    assert curve_svg.ticks(low, high) == pytest.approx(expected)
