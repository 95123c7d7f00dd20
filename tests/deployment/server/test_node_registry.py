from __future__ import annotations

from fedpbc.deployment.server.node_registry import NodeRegistry


def test_a_node_stays_bound_to_its_client():
    nodes = NodeRegistry(clients=2)
    assert nodes.bind(901, 0) is None
    assert nodes.bind(901, 0) is None
    assert nodes.bind(901, 1) == "claims to be client 1, but was client 0"
    assert nodes.bind(902, 0) == "claims to be client 0, which is node 901"
    assert nodes.bind(902, 2) == "claims to be client 2; there are 0 to 1"
    assert nodes.client_of == {901: 0}


def test_a_client_may_return_as_another_node_if_that_is_allowed():
    nodes = NodeRegistry(clients=2, rebind=True)
    nodes.bind(901, 0)
    assert nodes.bind(902, 0) is None
    assert nodes.client_of == {902: 0}
