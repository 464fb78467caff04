"""The suite's lanes: a failure counts unless the test passes on its own, and then it is told."""

from __future__ import annotations

import contextlib
import re
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.lanes import LANES, NOT_DONE, Lane, run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """Runs lanes, given the code of each one's tests, two beside each other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
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
        assert re.search("FAILED TWICE: .*test_wrong$", out, re.M) and "'this' == 'that'" in out


def test_what_passes_alone_is_told(suite, capfd):
    assert suite(PASSES, PASSES_THE_SECOND_TIME) == 0
    out = capfd.readouterr().out
    assert re.search("^lane 1: UNSTEADY: .*test_unsteady$", out, re.M)
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


def test_a_test_that_ends_its_process_costs_itself_alone(suite, capfd):
    dies = """
        import os

        def test_before(): pass
        def test_dies(): os.kill(os.getpid(), 9)
        def test_after(): pass
        """
    assert suite(PASSES, dies) == 1
    out = capfd.readouterr().out
    assert re.search("FAILED TWICE: .*test_dies$", out, re.M)
    assert "ended with 137 in" in out
    assert "1 passed, 2 deselected" in out, "what is left is run, and what is done is not"
    assert len(re.findall("FAILED", out)) == 1


def test_a_test_that_ends_its_process_leaves_nothing_running(suite, tmp_path):
    dies = """
        import os
        import subprocess
        from pathlib import Path

        def test_dies():
            Path("child").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
            os.kill(os.getpid(), 9)
        """
    assert suite(dies) == 1
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "child").read_text())).wait(20)


def test_a_suite_that_stops_at_a_failure_has_failed(suite):
    fails = "\n    def test_wrong(): assert False\n"
    assert suite(PASSES_THE_SECOND_TIME + fails, args=("-x",)) == 1


def test_a_test_that_crashes_once_is_told(suite, capfd):
    dies = """
        import os
        from pathlib import Path

        def test_dies():
            if not Path("before").exists():
                Path("before").touch()
                os._exit(0)
        """
    assert suite(dies) == 0
    assert re.search("UNSTEADY: .*test_dies$", capfd.readouterr().out, re.M)


def test_a_test_that_hangs_in_native_code_costs_itself_alone(suite, capfd):
    hangs = """
        import ctypes
        import pytest
        from tests import record

        record.EXTRA_SECONDS = 0.5

        @pytest.mark.timeout(0.5)
        def test_hangs(): ctypes.PyDLL(None).sleep(600)

        def test_after(): pass
        """
    assert suite(hangs) == 1
    out = capfd.readouterr().out
    assert re.search("FAILED TWICE: .*test_hangs$", out, re.M)
    assert "the stacks of what hung" in out and "in test_hangs" in out
    assert "1 passed, 1 deselected" in out


def test_a_lane_whose_tests_are_not_found_is_not_done(suite, capfd):
    assert suite(PASSES, "this is no Python") == 2
    assert "lane 1: NOT DONE: ended with 2\n" in capfd.readouterr().out


def test_a_lane_that_loses_test_after_test_is_given_up(suite, capfd):
    dies = "import os, pytest\n@pytest.mark.parametrize('n', range(9))\n"
    dies += "def test_dies(n): os.kill(os.getpid(), 9)\n"
    assert suite(dies) == 137
    assert "lane 0: NOT DONE: ended with 137\n" in capfd.readouterr().out


def test_what_is_not_done_in_time_is_ended(suite, monkeypatch, capfd):
    monkeypatch.setattr("tests.lanes.SUITE_SECONDS", 5)
    hangs = "import time\ndef test_hangs(): time.sleep(600)\n"
    assert suite(hangs) == NOT_DONE
    assert re.search("NOT DONE: ended with 124 in .*test_hangs$", capfd.readouterr().out, re.M)


def test_a_lane_without_a_test_that_was_asked_for_is_fine(suite):
    assert suite(PASSES, "def test_other(): pass\n", args=("-k", "fine")) == 0
