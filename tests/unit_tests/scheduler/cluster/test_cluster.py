"""The cluster object: its forms, its facts, and that there is one at a time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlinf.scheduler import Cluster, ClusterError, HybridComponentPlacement
from rlinf.utils.placement import HybridComponentPlacement as FromUtils
from tests.unit_tests.scheduler.worker.workers import Echo

SEED = {"num_nodes": 1, "component_placement": {"actor": "0-7", "env": "0-3", "rollout": "4-7"}}


def test_the_seeds_placement_runs_on_a_laptop_as_it_is(ray_session, tmp_path):
    with Cluster(1, 8, distributed_log_dir=str(tmp_path)) as cluster:
        placement = HybridComponentPlacement({"cluster": SEED})
        assert [placement.get_world_size(c) for c in ("actor", "env", "rollout")] == [8, 4, 4]
        group = Echo.create_group().launch(
            cluster, placement_strategy=placement.get_strategy("env")
        )
        assert group.add().wait() == [0, 1, 2, 3]
    assert FromUtils is HybridComponentPlacement


def test_one_cluster_at_a_time(cluster):
    assert Cluster() is cluster
    assert Cluster.current() is cluster and Cluster.has_initialized()
    with pytest.raises(ClusterError, match="a cluster is running in this process already"):
        Cluster(num_nodes=1)
    cluster.shutdown()
    cluster.shutdown()
    assert not Cluster.has_initialized()
    with pytest.raises(RuntimeError, match="there is no cluster"):
        Cluster.current()
    with pytest.raises(ClusterError, match="has been shut down"):
        Echo.create_group().launch(cluster)


def test_groups_that_are_launched_together_are_there_at_the_end(ray_session, tmp_path):
    with Cluster(1, 4, distributed_log_dir=str(tmp_path)) as cluster:
        with cluster.launch_together():
            groups = [Echo.create_group().launch(cluster, name=name) for name in ("a", "b")]
            assert [group.worker_info_list for group in groups] == [[], []], "nobody has waited"
        assert [len(group.worker_info_list) for group in groups] == [1, 1]
        for group in groups:
            assert group.add().wait() == [0]
        with pytest.raises(LookupError, match="lost its way"):
            with cluster.launch_together():
                Lost.create_group().launch(cluster, name="c")
                Echo.create_group().launch(cluster, name="d")
        # Both are gone: their names are free.
        for name in ("c", "d"):
            assert Echo.create_group().launch(cluster, name=name).add().wait() == [0]


def test_contradictions_are_refused(ray_session):
    with pytest.raises(ClusterError, match="num_nodes=2 contradicts cluster.num_nodes=1"):
        Cluster(2, cluster_cfg={"num_nodes": 1})
    with pytest.raises(ClusterError, match="1 of 3 nodes joined within 0.2 s"):
        Cluster(cluster_cfg={"num_nodes": 3, "timeouts": {"nodes": 0.2}})
    with pytest.raises(ValueError, match="there is no node 5"):
        with Cluster(num_nodes=1) as cluster:
            cluster.get_node_info(5)


@pytest.mark.timeout(240)
def test_several_nodes_without_a_named_ray_say_what_to_do():
    code = (
        "from rlinf.scheduler import Cluster, ClusterError\n"
        "try:\n    Cluster(num_nodes=2)\n"
        "except ClusterError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert "RLINF_NODE_RANK" in done.stdout and "cluster.num_nodes: 1" in done.stdout, done.stderr


@pytest.mark.timeout(240)
def test_an_address_where_nobody_is_says_so():
    code = (
        "from rlinf.scheduler import Cluster\n"
        "try:\n    Cluster(cluster_cfg={'num_nodes': 1, 'address': '127.0.0.1:1'})\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert "ClusterError there is no Ray at '127.0.0.1:1'" in done.stdout, done.stdout + done.stderr


def test_unread_keys_are_named_at_the_end(ray_session, tmp_path, capsys):
    from rlinf.config import validate_cfg

    raw = {
        "cluster": {"num_nodes": 1, "component_placement": {"echo": "0"}},
        "runner": {"task_type": "workers", "seed": 3},
        "example": {"used": 1, "forgotten": 2},
    }
    cfg = validate_cfg(raw)
    with Cluster(cluster_cfg=cfg.cluster, distributed_log_dir=str(tmp_path)) as cluster:
        group = Reader.create_group(cfg).launch(cluster)
        assert group.used().wait() == [1]
    report = capsys.readouterr().err
    assert "example.forgotten" in report and "runner.seed" in report
    assert "example.used" not in report, "what a worker read counts as read"


class Reader(Echo):
    """Reads one key of its configuration."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg

    def used(self) -> int:
        return self.cfg.example.used


class Lost(Echo):
    """Cannot be made."""

    def __init__(self):
        super().__init__()
        raise LookupError(f"rank {self._rank} lost its way")
