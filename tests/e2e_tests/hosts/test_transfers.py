"""Objects of all sizes between hosts, in all ways that workers have."""

from __future__ import annotations

import pytest

from tests.e2e_tests.hosts.transfers import SIZES


@pytest.mark.timeout(300)
def test_all_sizes_arrive_as_they_were_sent(hosts):
    nodes, sizes = len(hosts.hosts), len(SIZES)
    said = hosts.run("-m", "tests.e2e_tests.hosts.transfers", str(nodes))
    each = [sizes] * nodes
    broadcasts = [(nodes - 1) * sizes] * nodes
    assert said.strip().splitlines()[-1] == f"{broadcasts} {each} {each} {[nodes]}"


@pytest.mark.timeout(300)
def test_tensors_go_by_link_from_host_to_host(hosts):
    nodes, sizes = len(hosts.hosts), len(SIZES)
    said = hosts.run("-m", "tests.e2e_tests.hosts.transfers", str(nodes), "links")
    broadcasts = [(nodes - 1) * sizes] * nodes
    # To all others and from each of them; to the next rank and from the one before.
    made = [nodes + 2] * nodes
    assert f"{broadcasts} {[sizes] * nodes} {made}" in said.splitlines(), said
