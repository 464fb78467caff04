"""The suite's lanes: a failure counts unless the test passes on its own, and then it is told."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.lanes import HUNG, LANES, Lane, run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """Runs lanes, given the code of each one's tests, two beside each other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def suite(*codes: str, args: tuple[str, ...] = (), at_once: int = 2) -> int:
        lanes = []
        for number, code in enumerate(codes):
            path = tmp_path / f"test_{number}.py"
            path.write_text(textwrap.dedent(code))
            lanes.append(Lane(f"lane {number}", (str(path),), tmp_path / "lanes"))
        return run(lanes, at_once, list(args))

    return suite


PASSES = "def test_fine(): pass\n"
PASSES_THE_SECOND_TIME = """
    from pathlib import Path

    def test_fine(): pass

    def test_unsteady():
        tries = Path("tries")
        tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
        assert tries.read_text() == "xx"
    """


def test_every_whole_job_is_in_a_lane():
    named = {path for paths in LANES.values() for path in paths}
    for test in (ROOT / "tests/e2e_tests").rglob("test_*.py"):
        assert any(test.is_relative_to(ROOT / path) for path in named), test


def test_all_pass(suite, capfd):
    assert suite(PASSES, PASSES) == 0
    assert "UNSTEADY" not in capfd.readouterr().out


def test_a_failure_in_any_lane_counts(suite, capfd):
    fails = "def test_wrong(): assert 'this' == 'that'\n"
    for codes in ((fails, PASSES), (PASSES, fails)):
        assert suite(*codes) == 1
        out = capfd.readouterr().out
        assert "failed twice" in out and "'this' == 'that'" in out


def test_what_passes_alone_is_told(suite, capfd):
    assert suite(PASSES, PASSES_THE_SECOND_TIME) == 0
    out = capfd.readouterr().out
    assert "lane 1: UNSTEADY" in out
    assert re.search(r"^PASSED .*test_unsteady$", out, re.M)
    assert not re.search(r"^PASSED .*test_fine$", out, re.M)


def test_lanes_follow_each_other(suite, capfd):
    writes = "from pathlib import Path\ndef test_it(): Path('first').touch()\n"
    reads = "from pathlib import Path\ndef test_it(): assert Path('first').exists()\n"
    assert suite(writes, reads, at_once=1) == 0
    assert "UNSTEADY" not in capfd.readouterr().out


def test_lanes_run_beside_each_other_and_the_next_begins_when_one_has_ended(suite, capfd):
    meets = """
        import time
        from pathlib import Path

        def test_it():
            Path("{own}").touch()
            while not Path("{other}").exists():
                time.sleep(0.01)
        """
    # The first of the three waits for the last, which begins when the second has ended.
    codes = meets.format(own="a", other="c"), PASSES, meets.format(own="c", other="a")
    assert suite(*codes) == 0
    assert "UNSTEADY" not in capfd.readouterr().out


def test_an_error_of_a_fixture_is_a_failure(suite):
    broken = """
        import pytest

        @pytest.fixture
        def thing(): raise RuntimeError("broken")

        def test_it(thing): pass
        """
    assert suite(broken) == 1


def test_a_lane_that_does_not_reach_its_end_fails_without_another_try(suite, capfd):
    dies = "import os\ndef test_dies(): os.kill(os.getpid(), 9)\n"
    assert suite(PASSES, dies) == 128 + 9
    assert "ended before their tests were done" in capfd.readouterr().out
    assert suite(PASSES, "this is no Python") == 2


def test_a_lane_that_hangs_is_ended(suite, monkeypatch):
    monkeypatch.setattr("tests.lanes.LANE_SECONDS", 5)
    hangs = "import time\ndef test_hangs(): time.sleep(600)\n"
    assert suite(hangs) == HUNG


def test_a_lane_without_a_test_that_was_asked_for_is_fine(suite):
    assert suite(PASSES, "def test_other(): pass\n", args=("-k", "fine")) == 0
