"""Keys that nobody reads are found, and only those."""

import copy
import pickle

import pytest
from omegaconf import OmegaConf

from rlinf.config import (
    format_unread,
    reads,
    reset_reads,
    to_plain,
    unread_keys,
    untracked,
    validate_cfg,
)
from rlinf.config.tracked import TrackedConfig, track, unread_report

CONTENT = {
    "a": {"b": 1, "c": {"d": 2, "e": 3}, "items": [{"x": 1}, {"x": 2}]},
    "off": None,
    "empty": {},
}
LEAVES = {"a.b", "a.c.d", "a.c.e", "a.items", "off", "empty"}


@pytest.fixture
def cfg():
    return track(CONTENT, LEAVES)


def leaves_read():
    return reads() & LEAVES


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda cfg: cfg.a.b, {"a.b"}),
        (lambda cfg: cfg["a"]["c"]["d"], {"a.c.d"}),
        (lambda cfg: cfg.get("a").get("b"), {"a.b"}),
        (lambda cfg: cfg.a.get("nothing", 3), set()),
        (lambda cfg: cfg.a, set()),
        (lambda cfg: cfg.off, {"off"}),
        (lambda cfg: cfg.empty, {"empty"}),
        (lambda cfg: cfg.a["items"][0].x, {"a.items"}),
        (lambda cfg: dict(cfg.a.c.items()), {"a.c.d", "a.c.e"}),
        (lambda cfg: list(cfg.a.c.values()), {"a.c.d", "a.c.e"}),
        (lambda cfg: {**cfg.a.c}, {"a.c.d", "a.c.e"}),
        (lambda cfg: dict(cfg.items())["a"].c.d, {"a.c.d", "off", "empty"}),
        (lambda cfg: list(cfg.a), set()),
        (lambda cfg: len(cfg.a), set()),
        (lambda cfg: "b" in cfg.a, {"a.b"}),
        (lambda cfg: OmegaConf.select(cfg, "a.c.e"), {"a.c.e"}),
        (lambda cfg: OmegaConf.to_container(cfg.a.c), {"a.c.d", "a.c.e"}),
        (lambda cfg: OmegaConf.to_container(cfg), LEAVES),
        (lambda cfg: repr(cfg) + str(cfg.a), set()),
        (lambda cfg: to_plain(cfg), set()),
        (lambda cfg: copy.deepcopy(cfg), set()),
        (lambda cfg: pickle.dumps(cfg), set()),
    ],
)
def test_what_counts_as_read(cfg, read, expected):
    reset_reads()
    read(cfg)
    assert leaves_read() == expected


def test_children_are_tracked_however_they_were_handed_out(cfg):
    handed_out = (cfg.a, cfg["a"], cfg.get("a"), dict(cfg.items())["a"])
    for child in (*handed_out, OmegaConf.select(cfg, "a"), next(iter(cfg.values()))):
        reset_reads()
        assert isinstance(child, TrackedConfig)
        assert child.c.d == 2
        assert leaves_read() == {"a.c.d"}


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda cfg: pickle.loads(pickle.dumps(cfg))]
)
def test_copies_keep_tracking_and_stay_read_only(cfg, duplicate):
    other = duplicate(cfg)
    assert other == cfg
    reset_reads()
    assert other.a.c.e == 3
    assert leaves_read() == {"a.c.e"}
    assert unread_keys(other, reads()) == sorted(LEAVES - {"a.c.e"})
    assert OmegaConf.is_readonly(other.a.c)


def test_a_copied_part_still_knows_its_place(cfg):
    part = copy.deepcopy(cfg.a.c)
    reset_reads()
    assert part.d == 2
    assert leaves_read() == {"a.c.d"}


def test_reading_in_other_processes(tmp_path, embodied, run_python):
    cfg = validate_cfg(embodied)
    sent = tmp_path / "cfg.pkl"
    sent.write_bytes(pickle.dumps(cfg))
    program = (
        "import pickle, sys\n"
        f"cfg = pickle.load(open({str(sent)!r}, 'rb'))\n"
        "from rlinf.config.tracked import reads\n"
        "assert reads() == set()\n"
        "cfg.actor.global_batch_size\n"
        "assert not {'torch', 'ray', 'pydantic', 'hydra'} & set(sys.modules)\n"
        "sys.stdout.write(','.join(sorted(reads())))\n"
    )
    theirs = set(run_python("-c", program).split(","))
    assert theirs == {"actor", "actor.global_batch_size"}
    assert cfg.actor.micro_batch_size == 50
    unread = unread_keys(cfg, reads() | theirs)
    assert "actor.global_batch_size" not in unread
    assert "actor.micro_batch_size" not in unread
    assert "algorithm.update_epoch" in unread


def test_only_keys_that_the_user_set_are_reported(embodied):
    cfg = validate_cfg(embodied)
    assert reads() == set()
    unread = unread_keys(cfg, reads())
    assert "actor.global_batch_size" in unread
    assert "actor.optim.lr" not in unread
    assert len(unread) == 19
    OmegaConf.to_container(cfg)
    assert unread_keys(cfg.actor, reads()) == []


def test_keys_that_only_serve_interpolations_are_not_reported(workers):
    workers["example"] = {
        "width": 3,
        "area": "${multiply:${example.width},${.height}}",
        "height": 4,
        "box": {"x": 1, "y": 2},
        "other_box": "${example.box}",
        "lonely": 5,
    }
    cfg = validate_cfg(OmegaConf.create(workers))
    assert cfg.example.area == 12
    assert unread_keys(cfg, reads()) == [
        "example.lonely",
        "example.other_box.x",
        "example.other_box.y",
    ]


def test_untracked_blocks(cfg):
    with untracked():
        assert cfg.a.b == 1
    assert leaves_read() == set()
    assert cfg.a.b == 1
    assert leaves_read() == {"a.b"}


def test_a_checked_config_can_be_changed_by_merging(embodied):
    cfg = validate_cfg(embodied)
    again = validate_cfg(OmegaConf.merge(cfg, {"runner": {"resume_dir": "auto"}}))
    assert again.runner.resume_dir == "auto"
    assert unread_keys(again, ()) == unread_keys(cfg, ())


def test_the_report(cfg):
    assert format_unread([]) == ""
    assert format_unread(["a.b"]).startswith("1 key of the config was never read")
    text = format_unread(unread_keys(cfg, ["a.b"]))
    assert "5 keys of the config were never read in this run and had no effect:" in text
    assert "\n  a.c.d\n" in text
    assert "runner.report_unread_keys: false" in text


def test_an_evaluation_does_not_report_what_only_training_reads(embodied):
    embodied["runner"]["only_eval"] = True
    assert unread_report(validate_cfg(embodied), ()) == ""
    embodied["runner"]["only_eval"] = False
    assert "algorithm" in unread_report(validate_cfg(embodied), ())


def test_a_value_reads_as_omegaconf_would_read_it():
    odd = {"n": None, "i": 1, "f": 0.5, "b": True, "s": "text", "dollar": "costs ${5}", "l": [1]}
    cfg = track({"odd": odd, "deep": {"empty": {}}}, [])
    for name, value in odd.items():
        assert getattr(cfg.odd, name) == cfg.odd[name] == value
    assert cfg.deep.empty == {} and isinstance(cfg.deep.empty, TrackedConfig)
    with pytest.raises(AttributeError, match="nothing"):
        _ = cfg.odd.nothing


def test_a_changed_value_is_read(cfg):
    assert cfg.a.b == 1 and cfg.off is None
    OmegaConf.set_readonly(cfg, False)
    OmegaConf.set_struct(cfg, False)
    cfg.a.b = 5
    cfg.off = {"on": "???"}
    cfg.a.c = "${a.b}"
    assert cfg.a.b == 5 and cfg.a.c == 5
    with pytest.raises(Exception, match="Missing mandatory value"):
        _ = cfg.off.on
