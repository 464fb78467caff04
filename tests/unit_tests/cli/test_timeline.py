"""Where the time went: pieces without gaps, the critical path, and the advice."""

from __future__ import annotations

import json

import pytest

from rlinf.cli import main
from rlinf.cli.timeline.critical_path import critical_path
from rlinf.cli.timeline.lanes import load_timeline
from rlinf.cli.timeline.picture import colour_of, colours_of, draw
from rlinf.cli.timeline.summary import summarise
from rlinf.scheduler.trace import BLOCK
from tests.unit_tests.cli.traces import STEP_OF_TEN_SECONDS, write_traces


@pytest.fixture
def run(tmp_path):
    """Ten seconds: env steps for 6 s, asks the policy for 1 s; then 3 s of training."""
    write_traces(tmp_path)
    return tmp_path


def test_the_path_goes_through_whoever_the_others_waited_for(run):
    timeline = load_timeline(run)
    path = critical_path(timeline, timeline.steps[0])
    links = [(k.lane, k.name, round(k.seconds, 2)) for k in path if k.seconds > 0.1]
    assert links == [
        ("EnvGroup:0", "env_step", 3.0),
        ("RolloutGroup:0", "predict", 1.0),
        ("EnvGroup:0", "env_step", 3.0),
        ("ActorGroup:0", "training", 2.96),
    ]
    assert sum(link.seconds for link in path) == pytest.approx(10.0, abs=1e-3), "without gaps"


def test_busy_waiting_and_idle_add_up(run):
    summary = summarise(load_timeline(run))
    env, rollout = summary.lanes["EnvGroup:0"], summary.lanes["RolloutGroup:0"]
    assert env.busy["env_step"] == pytest.approx(6.0, abs=1e-3)
    assert sum(env.waiting.values()) == pytest.approx(1.0, abs=1e-3)
    assert env.idle == pytest.approx(3.0, abs=1e-3)
    assert rollout.waiting == {"a message from EnvGroup:0 (obs)": pytest.approx(6.0, abs=1e-3)}
    assert summary.sentence.startswith(
        "rollout is the limit: 70% of the critical path, mostly env_step of EnvGroup (1 process) "
        "with 60%: give env more processes (cluster.component_placement)"
    )


def test_the_command_prints_it_and_writes_the_timeline(run, capsys):
    assert main(["trace", str(run), "--steps", "0:"]) == 0
    out = capsys.readouterr().out
    assert "EnvGroup:0" in out and "env_step of EnvGroup" in out
    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert names == {"driver", "EnvGroup:0", "RolloutGroup:0", "ActorGroup:0"}
    predict = next(e for e in events if e["name"] == "predict")
    assert predict["dur"] == pytest.approx(1e6, rel=1e-3)


def test_a_picture_shows_each_worker(run):
    from PIL import Image

    timeline = load_timeline(run)
    step = timeline.steps[0]
    draw(timeline, step.begin, step.end, run / "picture.png")
    with Image.open(run / "picture.png") as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20)}
    assert (0x2A, 0x9D, 0x5C) in colours and (0x2F, 0x6F, 0xB5) in colours


def test_what_shares_a_picture_has_colours_of_its_own(tmp_path, monkeypatch):
    """Of these two names, each would have the same one if it were alone."""
    from PIL import Image

    assert colour_of("onload") == colour_of("offload")
    spans = [("onload", BLOCK, 0.0, 5.0), ("offload", BLOCK, 5.0, 10.0)]
    monkeypatch.setitem(STEP_OF_TEN_SECONDS, "ActorGroup/rank_0.trace", spans)
    write_traces(tmp_path)
    timeline = load_timeline(tmp_path)
    step = timeline.steps[0]
    draw(timeline, step.begin, step.end, tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as image:
        row = [lane.name for lane in timeline.lanes.values() if "driver" not in lane.name]
        top = 34 + row.index("ActorGroup:0") * 26 + 10
        first, second = (image.convert("RGB").getpixel((x, top)) for x in (300, 1000))
    assert first != second


def test_a_folder_without_traces_says_so(tmp_path, capsys):
    assert main(["trace", str(tmp_path)]) == 1
    assert "has no traces" in capsys.readouterr().err


def test_of_a_run_that_was_started_again_the_last_start_is_explained(tmp_path):
    write_traces(tmp_path, steps=3)
    write_traces(tmp_path, steps=2, begin=100.0, first=2)
    timeline = load_timeline(tmp_path)
    assert [step.name for step in timeline.steps] == ["step 2", "step 3"]
    assert len(timeline.lanes["EnvGroup:0"].calls) == 2
    assert summarise(timeline).lanes["EnvGroup:0"].busy["env_step"] == pytest.approx(12.0, abs=1e-3)


def test_the_last_steps_can_be_read_alone(tmp_path):
    write_traces(tmp_path, steps=5)
    whole, end = load_timeline(tmp_path), load_timeline(tmp_path, last=2)
    assert [step.name for step in end.steps] == ["step 4", "step 5"]
    assert len(end.lanes["EnvGroup:0"].calls) == 2
    one, other = summarise(whole, first=3), summarise(end)
    assert one.sentence == other.sentence and one.path == pytest.approx(other.path)


def test_names_have_colours_of_their_own():
    names = ["env_step", "evaluate", "interact", "generate", "sync_model_from_actor", "training"]
    assert len(set(colours_of(names))) == len(names)
    assert colours_of(["predict"]) == [colour_of("predict")]
