"""A rank that fails is told of, although others of its group go on."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from rlinf.runners.reasoning_services import ReasoningServices
from rlinf.scheduler import Channel, FlexiblePlacementStrategy, wait_all
from tests.unit_tests.runners.serving import Service

TWO = FlexiblePlacementStrategy([[0], [1]])


@pytest.fixture
def serve(shared_cluster):
    """Starts services, the last rank of one of which may fail; returns also the groups."""

    def start(fails: str):
        # Nobody waits that long: a test ends before.
        cfg = OmegaConf.create({"cluster": {"timeouts": {"channel": 1000}}})
        groups = {}
        for role in ("rollout", "reward"):
            group = Service.create_group(role == fails)
            name = f"{role} while {fails} fails"
            groups[role] = group.launch(shared_cluster, TWO, name=name)
        services = ReasoningServices(cfg, **groups)
        services.start(lambda name, **_: Channel.create(f"{name} while {fails} fails"))
        return services, groups

    return start


@pytest.mark.parametrize("role", ["rollout", "reward"])
def test_who_waits_for_verdicts_is_told_of_one_rank(serve, role):
    services, _ = serve(role)
    with pytest.raises(LookupError, match="rank 1 lost its way"):
        services.next_verdict(0)
    calls = services.generating if role == "rollout" else services.rewarding
    assert [call.done() for call in calls] == [False, True]


def test_a_service_that_ends_too_soon_is_told_of_and_all_end_when_they_should(serve):
    services, groups = serve("nobody")
    groups["rollout"].execute_on(0).end().wait()
    with pytest.raises(RuntimeError, match="rollout.* ended before the run did"):
        services.next_verdict(0)
    wait_all(groups["rollout"].end(), groups["reward"].end())
    services.end()
    assert all(call.done() for call in services.calls)
