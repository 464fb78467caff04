"""Configs of generation engines: our cache, and those that run elsewhere."""

import pytest

from rlinf.config import ConfigError, validate_cfg

SERVERS = {
    "an engine elsewhere without an address": (
        {"rollout.rollout_backend": "vllm_server", "rollout.server.weights_folder": "w"},
        "rollout.server.url",
        "is missing: where is the engine of rollout_backend vllm_server?",
    ),
    "an address that is none": (
        {
            "rollout.rollout_backend": "sglang_server",
            "rollout.server.url": "host:8000",
            "rollout.server.weights_folder": "w",
        },
        'rollout.server.url = "host:8000"',
        "'host:8000' is not the URL of a server, such as http://host:8000",
    ),
    "an address that nobody uses": (
        {"rollout.server.url": "http://host:8000"},
        'rollout.server.url = "http://host:8000"',
        "has no effect: rollout.rollout_backend is hf",
    ),
    "more servers than workers": (
        {
            "rollout.rollout_backend": "vllm_server",
            "rollout.server.url": [f"http://host{i}:8000" for i in range(9)],
            "rollout.server.weights_folder": "w",
        },
        "rollout.server.url",
        "names 9 servers for",
    ),
    "a server that cannot be trained": (
        {"rollout.rollout_backend": "vllm_server", "rollout.server.url": "http://host:8000"},
        "rollout.server.weights_folder",
        "could not get the weights that are trained",
        "a folder that worker and server see under the same path",
    ),
    "a setting that is the server's": (
        {
            "rollout.rollout_backend": "vllm_server",
            "rollout.server.url": "http://host:8000",
            "rollout.server.weights_folder": "w",
            "rollout.tensor_parallel_size": 2,
        },
        "rollout.tensor_parallel_size = 2",
        "has no effect: rollout_backend is vllm_server",
    ),
}


def message_of(config):
    with pytest.raises(ConfigError) as caught:
        validate_cfg(config)
    return str(caught.value)


@pytest.fixture
def served(reasoning, change):
    """A config with one rollout worker."""
    placement = {"cluster.component_placement": {"actor": "0-3", "rollout": "0", "reward": "0"}}
    return change(reasoning, placement)


@pytest.mark.parametrize("case", SERVERS)
def test_servers_that_do_not_fit(served, change, case):
    changes, *expected = SERVERS[case]
    message = message_of(change(served, changes))
    assert message.startswith("The config has 1 problem:"), message
    for part in expected:
        assert part in message


def test_a_server_per_worker_is_fine(reasoning, served, change):
    keys = {"rollout.rollout_backend": "vllm_server", "rollout.server.weights_folder": "w"}
    assert validate_cfg(change(served, keys | {"rollout.server.url": "http://host:8000"}))
    both = keys | {"rollout.server.url": ["http://a:1", "http://a:1"]}
    placed = {"cluster.component_placement": {"actor": "0-3", "rollout": "0-1", "reward": "0"}}
    message = message_of(change(reasoning, placed | both))
    assert "names a server twice" in message
    both["rollout.server.url"] = ["http://a:1", "http://b:1"]
    assert validate_cfg(change(reasoning, placed | both))


def test_a_fixed_model_is_evaluated_without_a_folder_for_weights(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    config = {
        "cluster": {"num_nodes": 1, "component_placement": {"rollout": "0", "reward": "0"}},
        "runner": {
            "task_type": "reasoning_eval",
            "seq_length": 64,
            "ckpt_path": str(tmp_path),
        },
        "data": {"type": "arithmetic", "max_prompt_length": 16},
        "reward": {"reward_type": "arithmetic"},
        "rollout": {
            "rollout_backend": "sglang_server",
            "server": {"url": "http://host:30000"},
        },
    }
    assert validate_cfg(config).rollout.server.weights_folder is None
    config["runner"]["ckpt_path"] = "results/run"
    assert "could not get the weights of results/run" in message_of(config)


def test_tokens_of_a_cache_that_is_not_paged(reasoning, change):
    keys = {"rollout.hf.paged_cache": False, "rollout.hf.max_cache_tokens": 4096}
    message = message_of(change(reasoning, keys))
    assert message.startswith("The config has 1 problem:"), message
    assert "rollout.hf.max_cache_tokens = 4096" in message
    assert "has no effect: rollout.hf.paged_cache is false" in message


@pytest.mark.parametrize("paged", ["auto", True])
def test_tokens_of_a_cache_that_may_be_paged(reasoning, change, paged):
    keys = {"rollout.hf.paged_cache": paged, "rollout.hf.max_cache_tokens": 4096}
    assert validate_cfg(change(reasoning, keys)).rollout.hf.paged_cache == paged


def test_a_word_that_is_no_cache(reasoning, change):
    message = message_of(change(reasoning, {"rollout.hf.paged_cache": "on please"}))
    assert "rollout.hf.paged_cache" in message and "auto" in message


def test_the_cache_is_chosen_by_default(reasoning):
    assert validate_cfg(reasoning).rollout.hf.paged_cache == "auto"
