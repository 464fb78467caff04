"""Names that users' programs know: where they are, and what they give."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from rlinf.scheduler import (
    Channel,
    Cluster,
    ClusterConfig,
    ClusterEnvVar,
    CollectiveGroupOptions,
    FlexiblePlacementStrategy,
    NodeGroupInfo,
    Worker,
    WorkerAddress,
)
from rlinf.utils.logging import get_logger, set_logger
from tests.unit_tests.scheduler.waits import PROMPTLY


class Named(Worker):
    """Tells what it is."""

    def facts(self) -> dict:
        return {
            "name": self.get_name(),
            "parent": self.get_parent_rank(),
            "node": self._cluster_node_rank,
            "device": (Worker.torch_device_type, Named.torch_device_type, self.torch_device_type),
            "platform": {Worker.torch_platform.__name__, self.torch_platform.__name__},
            "alive": [Worker.check_worker_alive(f"named:{rank}") for rank in range(3)],
            "log": self.worker_info.log_file,
        }

    def limited_port(self) -> int:
        return self.acquire_free_port(max_port_num=21_000)

    def talk(self) -> None:
        get_logger().info("said by whoever runs here")

    def swap(self, options: CollectiveGroupOptions) -> int:
        self.send(self.rank, "named", 1 - self.rank, options=options)
        return self.recv("named", 1 - self.rank, options=options)

    def segfault(self) -> None:
        import ctypes

        ctypes.string_at(0)


def two() -> FlexiblePlacementStrategy:
    return FlexiblePlacementStrategy([[0], [1]])


def test_a_worker_tells_its_names(cluster, capfd):
    group = Named.create_group().launch(cluster, two(), name="named")
    first, second = group.facts().wait()
    assert (first["name"], second["name"]) == ("named:0", "named:1")
    assert first["parent"] is None and first["node"] == 0
    assert first["device"] == ("cpu",) * 3 and first["platform"] == {"torch.cpu"}
    assert first["alive"] == [True, True, False]
    assert all(20_000 <= port <= 21_000 for port in group.limited_port().wait())
    group.execute_on(1).talk().wait()
    assert "named-Rank-1][test_user_names.py" in open(second["log"]).read()
    options = CollectiveGroupOptions(accel_max_ctas=8, is_high_priority_stream=True)
    assert group.swap(options).wait() == [1, 0]
    assert group.swap(options).wait() == [1, 0], "the same ones again"
    with pytest.raises(ValueError, match="cannot be changed to"):
        group.swap(CollectiveGroupOptions()).wait(PROMPTLY)
    with pytest.raises(TypeError, match="options must be CollectiveGroupOptions or None, not dict"):
        group.swap({}).wait(PROMPTLY)


def test_workers_without_a_log_file(cluster):
    group = Named.create_group().launch(cluster, name="quiet", disable_distributed_log=True)
    group.talk().wait()
    assert group.worker_info_list[0].log_file == ""
    assert not list(cluster.log_dir.glob("quiet/*.log"))


@pytest.mark.parametrize("caught", [None, False])
def test_stacks_of_a_crash_are_kept_unless_that_is_turned_off(cluster, caught):
    group = Named.create_group().launch(cluster, name="crash", catch_system_failure=caught)
    with pytest.raises(Exception, match="crash:0"):
        group.segfault().wait(PROMPTLY)
    (file,) = cluster.log_dir.glob("crash/*.stacks")
    assert ("Segmentation fault" in file.read_text()) == (caught is None)


def test_a_cluster_tells_its_names(cluster, monkeypatch):
    assert [node.node_rank for node in cluster.get_alive_nodes()] == [0]
    assert cluster.num_nodes == 1
    assert 20_000 <= Cluster.find_free_port(max_port_num=21_000) <= 21_000
    monkeypatch.setenv("RLINF_LOG_LEVEL", "WARNING")
    assert Cluster.get_full_env_var_name(ClusterEnvVar.LOG_LEVEL) == "RLINF_LOG_LEVEL"
    assert Cluster.get_sys_env_var(ClusterEnvVar.LOG_LEVEL, "INFO") == "WARNING"
    assert Cluster.get_sys_env_var(ClusterEnvVar.EXT_MODULE, "none") == "none"
    group = cluster.get_node_group(NodeGroupInfo.DEFAULT_GROUP_LABEL)
    assert group.node_ranks == (0,)
    assert ClusterConfig(num_nodes=2).timeouts.launch == 300


def test_addresses_take_a_rank_or_a_path():
    assert WorkerAddress("actor", 3) == WorkerAddress("actor", [3]) == WorkerAddress("actor", (3,))
    assert str(WorkerAddress("actor", ranks=[0, 2])) == "actor:0:2"
    assert str(WorkerAddress("actor", None)) == str(WorkerAddress("actor")) == "actor"
    assert WorkerAddress("actor", ranks=0).rank == 0


def test_a_channel_shows_its_items():
    channel = Channel.create("local", local=True)
    for number in range(23):
        channel.put(number)
    assert str(channel).startswith("<Channel local: 23 items: [0, 1, 2")
    assert str(channel).endswith("19, and 3 more]>")
    assert channel.qsize() == 23


def test_options_of_groups_are_checked():
    with pytest.raises(ValueError, match="accel_max_ctas=33 is not possible; allowed: 1 to 32"):
        CollectiveGroupOptions(accel_max_ctas=33)
    with pytest.raises(ValueError, match="accel_min_ctas=9 is more than accel_max_ctas=8"):
        CollectiveGroupOptions(accel_min_ctas=9, accel_max_ctas=8)


def test_options_become_those_of_nccl():
    nccl = SimpleNamespace(is_high_priority_stream=False, config=SimpleNamespace(max_ctas=32))
    CollectiveGroupOptions(accel_min_ctas=2, is_high_priority_stream=True).apply(nccl)
    assert nccl.is_high_priority_stream
    assert vars(nccl.config) == {"max_ctas": 32, "min_ctas": 2}, "what is not given stays"


def test_the_logger_of_a_driver(monkeypatch, capsys):
    monkeypatch.setenv("RLINF_LOG_LEVEL", "warning")
    set_logger(None)
    logger = get_logger()
    handlers = list(logger.handlers)
    monkeypatch.setattr(logger, "handlers", [])
    try:
        get_logger().info("not shown")
        get_logger().warning("shown")
        said = capsys.readouterr().out
        assert "[WARNING " in said and " driver][test_user_names.py:" in said and "shown" in said
        assert "not shown" not in said
        monkeypatch.setenv("RLINF_LOG_LEVEL", "loud")
        with pytest.raises(ValueError, match="RLINF_LOG_LEVEL='LOUD'; allowed: DEBUG, INFO"):
            get_logger()
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(logging.NOTSET)
