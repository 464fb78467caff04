"""An episode is whole or not there: kills, full disks, and damaged files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("av")

import pyarrow.parquet as pq  # noqa: E402

from rlinf.data.lerobot import DatasetError, DatasetWriter, LeRobotDataset  # noqa: E402
from rlinf.data.lerobot.layout import FileSet  # noqa: E402
from tests.unit_tests.data.lerobot.conftest import FEATURES, FPS, NUMBERS, add, frame  # noqa: E402
from tests.unit_tests.data.lerobot.test_round_trip import assert_episode  # noqa: E402

ROOT = Path(__file__).resolve().parents[4]

WRITE_FOR_EVER = """
import sys
from rlinf.data.lerobot import DatasetWriter
from tests.unit_tests.data.lerobot.conftest import FEATURES, FPS, add
with DatasetWriter.create(sys.argv[1], FPS, FEATURES) as writer:
    for episode in range(10_000):
        add(writer, episode % 3, 4)
        print(writer.save_episode(), flush=True)
"""


def test_a_killed_writer_leaves_a_dataset_that_opens(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    program = [sys.executable, "-c", WRITE_FOR_EVER, str(folder)]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if int(line) == 4:
                break
        process.send_signal(signal.SIGKILL)
    dataset = LeRobotDataset(folder)
    saved = dataset.num_episodes
    assert saved >= 5
    for index in range(saved):
        assert_episode(dataset, index, index % 3, 4)
    with DatasetWriter.append(folder) as writer:
        add(writer, 1, 5)
        assert writer.save_episode() == saved
    assert_episode(LeRobotDataset(folder), saved, 1, 5)
    assert not (folder / ".staging").exists()


class Stop(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("survivors", range(6))
def test_a_kill_between_any_two_files(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, survivors: int
) -> None:
    """A video, the table, tasks, episodes, statistics and info are renamed, in this order."""
    folder = make([3, 4])
    replaced, real = [], os.replace

    def replace(source: Path, target: Path) -> None:
        if len(replaced) == survivors:
            raise Stop
        replaced.append(Path(target).name)
        real(source, target)

    with DatasetWriter.append(folder) as writer:
        add(writer, 2, 5, "a new task")
        writer.save_episode()
        add(writer, 1, 6, "another task")
        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(Stop):
            writer.save_episode()
        monkeypatch.undo()
    assert len(replaced) == survivors and "info.json" not in replaced
    lengths = [3, 4, 5]
    dataset = LeRobotDataset(folder)
    assert dataset.num_episodes == 3
    for index, length in enumerate(lengths):
        assert_episode(dataset, index, index, length)
    with DatasetWriter.append(folder) as writer:
        add(writer, 0, 2)
        assert writer.save_episode() == 3
    dataset = LeRobotDataset(folder)
    for index, (made, length) in enumerate([(0, 3), (1, 4), (2, 5), (0, 2)]):
        assert_episode(dataset, index, made, length)
    rows = [row for path in sorted(folder.glob("data/*/*")) for row in _index_of(path)]
    assert rows == list(range(14)), "rows that were not committed are gone"
    described = [
        number
        for path in sorted(folder.glob("meta/episodes/*/*"))
        for number in pq.read_table(path)["episode_index"].to_pylist()
    ]
    assert described == [0, 1, 2, 3]


def _index_of(path: Path) -> list[int]:
    return pq.read_table(path, columns=["index"])["index"].to_pylist()


def test_the_writer_goes_on_after_a_failed_save(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make([3])
    with DatasetWriter.append(folder) as writer:
        add(writer, 1, 4)
        real = FileSet.publish

        def half(self: FileSet) -> None:
            last = list(self._staged)[-1]
            self._staged.pop(last)
            real(self)
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(FileSet, "publish", half)
        with pytest.raises(OSError, match="No space left"):
            writer.save_episode()
        monkeypatch.undo()
        assert LeRobotDataset(folder).num_episodes == 1
        assert writer.save_episode() == 1
        add(writer, 2, 2)
        assert writer.save_episode() == 2
    dataset = LeRobotDataset(folder)
    for index, length in enumerate([3, 4, 2]):
        assert_episode(dataset, index, index, length)


FULL = """
import resource, signal, sys
import numpy as np
from rlinf.data.lerobot import DatasetWriter, LeRobotDataset
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
kind, folder = sys.argv[1:]
feature = {"dtype": kind, "shape": (64, 64, 3), "names": ["height", "width", "channel"]}
rng = np.random.default_rng(0)
def add(writer, frames):
    for _ in range(frames):
        writer.add_frame({"camera": rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)}, "look")
with DatasetWriter.create(folder, 10, {"camera": feature}) as writer:
    add(writer, 2)
    writer.save_episode()
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    try:
        add(writer, 100)
        writer.save_episode()
    except OSError as error:
        print("refused", error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert LeRobotDataset(folder).num_episodes == 1
    writer.discard_episode()
    add(writer, 3)
    print("saved", writer.save_episode())
assert [episode.length for episode in LeRobotDataset(folder).episodes()] == [2, 3]
"""


@pytest.mark.parametrize("kind", ["video", "image"])
def test_a_disk_that_is_full(tmp_path: Path, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, kind, str(tmp_path / "d")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused" in done.stdout and "saved 1" in done.stdout


def test_an_episode_that_is_not_saved_is_not_there(make: Callable[..., Path]) -> None:
    folder = make([3])
    with DatasetWriter.append(folder) as writer:
        add(writer, 1, 4)
        writer.discard_episode()
        add(writer, 2, 2)
        writer.save_episode()
        add(writer, 1, 4)
    dataset = LeRobotDataset(folder)
    assert dataset.num_episodes == 2
    assert_episode(dataset, 1, 2, 2)
    with pytest.raises(DatasetError, match="the writer is closed"):
        writer.add_frame(frame(0, 0, 1), "reach")
    with DatasetWriter.append(folder) as writer:
        with pytest.raises(DatasetError, match="episode 2 has no frames"):
            writer.save_episode()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("meta/info.json", _cut, "info.json is not JSON"),
        ("meta/tasks.parquet", _cut, r"tasks.parquet \(\d+ bytes\) is not a whole parquet file"),
        ("meta/tasks.parquet", Path.unlink, "tasks.parquet is missing"),
        ("meta/episodes/chunk-000/file-000.parquet", _cut, "not a whole parquet file"),
        (
            "meta/episodes/chunk-000/file-000.parquet",
            Path.unlink,
            "does not describe episode 0; .*info.json counts 2",
        ),
        ("data/chunk-000/file-000.parquet", _cut, "file-000.parquet .* not a whole parquet"),
        ("data/chunk-000/file-000.parquet", Path.unlink, "file-000.parquet is missing"),
        ("videos/observation.images.top/chunk-000/file-000.mp4", _cut, r"file-000.mp4 \(\d+ bytes"),
        ("videos/observation.images.top/chunk-000/file-000.mp4", Path.unlink, "mp4 is missing"),
    ],
)
def test_a_damaged_file_is_named(
    make: Callable[..., Path], name: str, damage: Callable[[Path], None], message: str
) -> None:
    folder = make([3, 3])
    damage(folder / name)
    with pytest.raises(DatasetError, match=message):
        LeRobotDataset(folder).episode(0)


def test_what_does_not_fit_together_is_named(make: Callable[..., Path], tmp_path: Path) -> None:
    folder, other = make([3, 3]), make([2, 5], "other")
    table = "data/chunk-000/file-000.parquet"
    shutil.copy(other / table, folder / table)
    with pytest.raises(DatasetError, match=r"episode 0: rows 0 to 3 belong to episodes \{0, 1\}"):
        LeRobotDataset(folder).episode(0)
    video = "videos/observation.images.top/chunk-000/file-000.mp4"
    short = make([1, 1], "short")
    shutil.copy(short / video, other / video)
    with pytest.raises(
        DatasetError, match=r"episode 1, feature 'observation.images.top'.*no frame"
    ):
        LeRobotDataset(other).episode(1)
    text = (other / "meta/info.json").read_text()
    for old, new, message in (
        ('"v3.0"', '"v1.6"', "codebase_version is 'v1.6'; v3.0 and v2.1 are read"),
        ('"fps": 10', '"fps": 0', "fps is 0; it must be above 0"),
        ('"total_frames": 7', '"total_frames": 9', "counts 2 episodes with 9 frames; 2 with 7"),
        ('"data/chunk', '"../data/chunk', "data_path is .* must stay inside"),
    ):
        (other / "meta/info.json").write_text(text.replace(old, new))
        with pytest.raises(DatasetError, match=message):
            LeRobotDataset(other)


def test_a_picture_that_is_damaged_is_named(make: Callable[..., Path]) -> None:
    folder = make([2])
    path = folder / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    name = "observation.images.wrist"
    cells = table[name].to_pylist()
    cells[1]["bytes"] = cells[1]["bytes"][:20]
    at = table.column_names.index(name)
    import pyarrow as pa

    pq.write_table(table.set_column(at, name, pa.array(cells, table[name].type)), path)
    with pytest.raises(DatasetError, match=f"episode 0, feature '{name}': a picture of 20 bytes"):
        LeRobotDataset(folder).episode(0)


def test_an_encoder_that_fails_does_not_hang(tmp_path: Path) -> None:
    with DatasetWriter.create(tmp_path / "d", FPS, FEATURES, queue_frames=1) as writer:
        add(writer, 0, 2)
        writer.save_episode()
        # The folder that the encoder writes into is a file.
        staging = tmp_path / "d" / ".staging"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        (staging / "videos").mkdir()
        (staging / "videos" / "observation.images.top.mp4").mkdir()
        with pytest.raises(OSError, match="'observation.images.top': the video cannot be written"):
            add(writer, 1, 50)
            writer.save_episode()
        shutil.rmtree(staging)
        writer.discard_episode()
        add(writer, 1, 2)
        assert writer.save_episode() == 1


def test_numbers_alone_need_no_video_library(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['av'] = None\n"
        "from rlinf.data.lerobot import DatasetWriter, LeRobotDataset, DatasetError\n"
        "from tests.unit_tests.data.lerobot.conftest import NUMBERS, FEATURES, add\n"
        "with DatasetWriter.create(sys.argv[1], 10, NUMBERS) as writer:\n"
        "    add(writer, 0, 3); writer.save_episode()\n"
        "print(LeRobotDataset(sys.argv[1]).episode(0).length)\n"
        "try: DatasetWriter.create(sys.argv[1] + 'v', 10, FEATURES)\n"
        "except DatasetError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "d")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("3\n"), done.stderr
    assert "package av" in done.stdout and "[datasets]" in done.stdout
    assert np.isfinite(LeRobotDataset(tmp_path / "d").stats["action"]["mean"]).all()
    assert set(NUMBERS) < set(LeRobotDataset(tmp_path / "d").features)
