"""Who may connect to whom by the chart's policies, read as Kubernetes reads them, held against who must."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import hub_in_cluster
import pytest
from chart import PART, RELEASE, Chart, Object, Pod, rendered

RAY_PORTS = (6379, 6380, 6381, 6382, 8080, 8265, 10002, 52365)
DOORS = (30000, 34999)
PORTS = (22, 443, 5432, 8000, 8001, 8081, 8091, 8712, 8783, 8784, 8888, *RAY_PORTS, DOORS[0] - 1, *DOORS, DOORS[1] + 1)


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())


def permits(rules: Iterable[Object], side: str, other: Pod, port: int) -> bool:
    """Whether a rule is for that pod of the same namespace and that port."""
    return any(_is_for(rule.get(side), other) and _has_port(rule.get("ports"), port) for rule in rules)


def _is_for(peers: list[Object] | None, other: Pod) -> bool:
    return peers is None or any(peer.keys() == {"podSelector"} and selects(peer["podSelector"], other.labels) for peer in peers)


def _has_port(ports: list[Object] | None, port: int) -> bool:
    return ports is None or any(one["protocol"] == "TCP" and one["port"] <= port <= one.get("endPort", one["port"]) for one in ports)


class Network:
    """The chart's pods, and a notebook's."""

    def __init__(self, chart: Chart, hub: Any) -> None:
        notebook, _ = hub_in_cluster.notebook(hub)
        labels = notebook["metadata"]["labels"]
        self.pods = {pod.part: pod for pod in [*chart.pods(), Pod(labels[PART], labels, notebook["spec"])]}
        self._policies = [found["spec"] for found in chart.all("NetworkPolicy")]

    def policies_of(self, pod: Pod) -> list[Object]:
        return [policy for policy in self._policies if selects(policy["podSelector"], pod.labels)]

    def sends(self, source: str, target: str, port: int) -> bool:
        return any(permits(policy["egress"], "to", self.pods[target], port) for policy in self.policies_of(self.pods[source]))

    def takes(self, source: str, target: str, port: int) -> bool:
        return any(permits(policy["ingress"] or (), "from", self.pods[source], port) for policy in self.policies_of(self.pods[target]))

    def reaches(self, source: str, target: str, port: int) -> bool:
        return self.sends(source, target, port) and self.takes(source, target, port)

    def reached_by(self, source: str) -> set[tuple[str, int]]:
        return {(target, port) for target in self.pods for port in PORTS if self.reaches(source, target, port)}


@pytest.fixture
def network(chart: Chart, hub: Any) -> Network:
    return Network(chart, hub)


def test_each_pod_is_under_one_policy_which_says_both_ways(network: Network) -> None:
    assert {"notebook", "ray-worker", "ray-head", "backup"} < set(network.pods)
    for pod in network.pods.values():
        (policy,) = network.policies_of(pod)
        assert policy["policyTypes"] == ["Ingress", "Egress"], pod.part


def test_a_notebook_reaches_hub_pool_billing_and_the_doors_of_workers(network: Network) -> None:
    """The hub knows who opens a notebook, and billing what is left of a budget."""
    doors = {("ray-worker", port) for port in DOORS}
    assert network.reached_by("notebook") == {("hub", 8081), ("pool", 8091), ("billing", 8712)} | doors


def test_a_notebook_goes_nowhere_else_but_for_names(network: Network) -> None:
    (policy,) = network.policies_of(network.pods["notebook"])
    (beyond,) = [rule for rule in policy["egress"] if not all(peer.keys() == {"podSelector"} for peer in rule.get("to", [{}]))]
    assert beyond["to"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}]
    assert beyond["ports"] == [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]


def test_a_notebook_goes_where_the_values_say_too(helm: str) -> None:
    index = "singleuser.networkPolicy.egress[0].to[0].ipBlock.cidr=192.0.2.7/32"
    policy = rendered(helm, "trying", "--set", index).one("NetworkPolicy", "notebook")["spec"]
    assert policy["egress"][-1] == {"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}]}


def test_only_hub_and_proxy_reach_a_notebook(network: Network) -> None:
    assert {source for source in network.pods if any(network.reaches(source, "notebook", port) for port in PORTS)} == {"hub", "proxy"}


def test_ray_is_reached_by_ray_and_the_pool_alone(network: Network) -> None:
    for port in RAY_PORTS:
        for target in ("ray-head", "ray-worker"):
            sources = {source for source in network.pods if network.reaches(source, target, port)}
            assert sources <= {"pool", "ray-head", "ray-worker"} and "pool" in sources, (target, port)


def test_what_is_sent_is_taken_and_what_is_taken_is_sent(network: Network) -> None:
    for source in network.pods:
        for target in network.pods:
            for port in set(PORTS) - {53, 443, 5432, 8000}:
                assert network.sends(source, target, port) == network.takes(source, target, port), (source, target, port)


def test_everybody_reaches_the_addresses_that_it_is_told(chart: Chart, hub: Any, network: Network) -> None:
    told = {part: chart.environment(part).values() for part in ("pool", "billing", "dashboards", "edge")}
    told["pool"] = [*told["pool"], *re.findall(r'"(http://[^"]+)"', chart.file("pool", "pool.toml"))]
    told["proxy"] = chart.pod("proxy").containers[0]["command"]
    told["hub"] = re.findall(r'"(http://[^"]+)"', chart.file("hub", "chart.json"))
    notebook, _ = hub_in_cluster.notebook(hub)
    told["notebook"] = [variable.get("value", "") for variable in notebook["spec"]["containers"][0]["env"]]
    checked = set()
    for source, texts in told.items():
        for url in re.findall(rf"http://{RELEASE}-[^\s,]*", " ".join(texts)):
            service = (urlsplit(url).hostname or "").removeprefix(f"{RELEASE}-")
            target = chart.one("Service", service)["spec"]["selector"][PART]
            if target != source:
                assert network.reaches(source, target, urlsplit(url).port or 80), (source, url)
                checked.add((source, target))
    assert {("hub", "proxy"), ("proxy", "hub"), ("pool", "billing"), ("dashboards", "pool"), ("notebook", "pool")} <= checked
    assert ("edge", "pool") in checked and all(network.reaches("edge", "ray-worker", port) for port in DOORS)


def test_databases_are_reached_by_who_has_one(chart: Chart) -> None:
    cidrs = {}
    for policy in chart.all("NetworkPolicy"):
        part = policy["metadata"]["labels"][PART]
        blocks = [(peer["ipBlock"], rule["ports"]) for rule in policy["spec"]["egress"] for peer in rule.get("to", ()) if "ipBlock" in peer]
        cidrs[part] = {(block["cidr"], port["port"]) for block, ports in blocks for port in ports}
    with_database = {part for part, found in cidrs.items() if any(port == 5432 for _, port in found)}
    assert with_database == {"hub", "pool", "billing", "backup"}
    elastic = {"ray-head"} if "enableInTreeAutoscaling" in chart.one("RayCluster", "ray")["spec"] else set()
    assert {part for part, found in cidrs.items() if found} == with_database | elastic, "it asks for pods"


def test_private_addresses_are_no_world_outside(chart: Chart) -> None:
    """What sign-in, payments and mail need is out there, and neither the cluster nor the cloud's metadata."""
    (rule,) = [
        rule
        for rule in chart.one("NetworkPolicy", "billing")["spec"]["egress"]
        for peer in rule.get("to", ())
        if peer.get("ipBlock", {}).get("except")
    ]
    assert {"10.0.0.0/8", "169.254.0.0/16"} <= set(rule["to"][0]["ipBlock"]["except"])


def test_prometheus_reaches_metrics_where_it_is_wanted(chart: Chart) -> None:
    watched = {monitor["metadata"]["labels"][PART] for monitor in chart.all("ServiceMonitor")}
    opened = {
        policy["metadata"]["labels"][PART]
        for policy in chart.all("NetworkPolicy")
        if any("namespaceSelector" in peer for rule in policy["spec"]["ingress"] or () for peer in rule.get("from", ()))
    }
    assert opened == watched
