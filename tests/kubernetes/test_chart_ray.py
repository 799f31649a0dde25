"""The Ray cluster of the chart: what Ray's own command takes, what the pool makes of its nodes, and the doors of workers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from chart import PART, Chart, Object, Pod, rendered
from forebay_pool.hosts.ray_nodes import NODE_LABEL, RayNode, devices_of
from test_chart_settings import read

pytest.importorskip("ray")
from forebay_pool.hosts.ray_autoscaler import resource_of
from ray._private.label_utils import parse_node_labels_string
from ray.scripts.scripts import start


def groups(chart: Chart) -> list[Object]:
    found: list[Object] = chart.one("RayCluster", "ray")["spec"]["workerGroupSpecs"]
    return found


def labels_of(group: Object) -> dict[str, str]:
    """As Ray reads them of the command that the pod runs."""
    (command,) = group["template"]["spec"]["containers"][0]["args"]
    (text,) = re.findall(r"--labels=(\S+)", command.replace("$NODE_NAME", "gpu-7.example.org"))
    labels: dict[str, str] = parse_node_labels_string(text)
    return labels


def test_ray_knows_every_option(chart: Chart) -> None:
    known = {name for option in start.params for name in option.opts}
    cluster = chart.one("RayCluster", "ray")["spec"]
    given = [f"--{name}" for group in (cluster["headGroupSpec"], *groups(chart)) for name in group["rayStartParams"]]
    (beside_the_pool,) = chart.pod("pool").spec["initContainers"]
    assert beside_the_pool["command"][:2] == ["ray", "start"]
    given += [option.partition("=")[0] for option in beside_the_pool["command"][2:]]
    assert set(given) <= known


def test_a_node_offers_the_devices_of_its_group(helm: str, tmp_path: Path) -> None:
    chart = rendered(helm, "gpus")
    settings = read(chart, "pool", tmp_path)
    offered = {}
    for group in groups(chart):
        gpus = int(group["rayStartParams"]["num-gpus"])
        row = {"NodeID": "1", "NodeManagerHostname": "pod", "NodeManagerAddress": "10.1.2.3", "Labels": labels_of(group)}
        node = RayNode.of({**row, "Resources": {"GPU": gpus}})
        assert node.name == "gpu-7.example.org"
        devices = devices_of(node, settings.devices)
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        assert len(devices) == gpus and gpus in limits.values()
        offered[group["groupName"]] = {(device.kind, device.model, device.switch) for device in devices}
    assert offered == {"h100": {("cuda", "H100", "rack-1")}, "mi250": {("hip", "MI250", "")}}


def test_devices_for_trying_are_counted_by_their_group(helm: str, tmp_path: Path) -> None:
    chart = rendered(helm, "trying")
    (group,) = groups(chart)
    node = RayNode("1", "node", "10.1.2.3", labels_of(group), int(group["rayStartParams"]["num-gpus"]))
    assert [device.kind for device in devices_of(node, read(chart, "pool", tmp_path).devices)] == ["cpu", "cpu"]
    assert NODE_LABEL in labels_of(group)


def test_the_pool_finds_the_head_where_kuberay_puts_it(chart: Chart, tmp_path: Path) -> None:
    """KubeRay names the head's Service after the cluster."""
    host, _, port = read(chart, "pool", tmp_path).ray_address.partition(":")
    assert host == f"{chart.one('RayCluster', 'ray')['metadata']['name']}-head-svc"
    assert int(port) in chart.pod("ray-head").ports
    (beside_the_pool,) = chart.pod("pool").spec["initContainers"]
    assert f"--address={host}:{port}" in beside_the_pool["command"]


def test_pool_and_nodes_have_one_ray(chart: Chart) -> None:
    """And share what its processes share: files, memory, process ids."""
    pool: Pod = chart.pod("pool")
    mounts = [{(mount["name"], mount["mountPath"]) for mount in container["volumeMounts"]} for container in pool.containers]
    assert {("tmp", "/tmp"), ("shm", "/dev/shm")} <= mounts[0] & mounts[1]
    assert pool.spec["shareProcessNamespace"] and pool.spec["initContainers"][0]["restartPolicy"] == "Always"


def test_nothing_of_ray_listens_among_the_doors(chart: Chart) -> None:
    for group in groups(chart):
        (sysctl,) = group["template"]["spec"]["securityContext"]["sysctls"]
        first, last = map(int, sysctl["value"].split())
        parameters: dict[str, Any] = {**group["rayStartParams"]}
        ports = [int(value) for name, value in parameters.items() if name.endswith("-port")]
        assert sysctl["name"] == "net.ipv4.ip_local_port_range" and len(ports) == 8
        assert not [port for port in ports if first <= port <= last]
        assert int(parameters["max-worker-port"]) < first, "and none between its bounds"


def test_a_node_is_one_host_s(chart: Chart) -> None:
    for group in groups(chart):
        (apart,) = group["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert apart["topologyKey"] == "kubernetes.io/hostname"
        assert apart["labelSelector"]["matchLabels"].items() <= group["template"]["metadata"]["labels"].items()
        budget = chart.one("PodDisruptionBudget", f"ray-worker-{group['groupName']}")["spec"]
        assert budget["selector"]["matchLabels"].items() <= group["template"]["metadata"]["labels"].items()
        assert budget["minAvailable"] == group["maxReplicas"]


def test_pods_with_devices_alone_have_the_runtime_class_of_their_group(helm: str) -> None:
    """NVIDIA's runtime is for what opens devices; a pod that names a class which the cluster lacks does not start."""
    chart = rendered(helm, "gpus")
    named = {group["groupName"]: group["template"]["spec"].get("runtimeClassName") for group in groups(chart)}
    assert named == {"h100": "nvidia", "mi250": None}
    assert sum("runtimeClassName" in pod.spec for pod in chart.pods()) == 1, "neither Ray's head nor a service has it"


def test_the_autoscaler_may_start_what_the_pool_may_ask_for(helm: str, tmp_path: Path) -> None:
    """Of the resource that the pool asks for each node of the group has one, and nothing else has any."""
    chart = rendered(helm, "gpus")
    asked = {group.model: group for group in read(chart, "pool", tmp_path).node_groups}
    assert set(asked) == {"MI250"}
    for group in groups(chart):
        limits = (group["minReplicas"], group["maxReplicas"])
        if group["groupName"] == "mi250":
            assert limits == (asked["MI250"].nodes_min, asked["MI250"].nodes_max) == (2, 6)
            assert json.loads(json.loads(group["rayStartParams"]["resources"])) == {resource_of("MI250"): 1}
        else:
            assert limits == (4, 4) and "resources" not in group["rayStartParams"]
        assert group["template"]["spec"]["restartPolicy"] == "Never"
    spec = chart.one("RayCluster", "ray")["spec"]
    assert spec["enableInTreeAutoscaling"] and spec["autoscalerOptions"]["version"] == "v2"
    assert chart.pod("ray-head").spec["automountServiceAccountToken"], "Ray's autoscaler asks the API of Kubernetes for pods"


def test_without_elastic_groups_there_is_no_autoscaler(helm: str) -> None:
    chart = rendered(helm, "trying")
    spec = chart.one("RayCluster", "ray")["spec"]
    assert "enableInTreeAutoscaling" not in spec and "autoscalerOptions" not in spec
    assert not chart.pod("ray-head").spec["automountServiceAccountToken"]


PATIENCE = {"name": "RAY_gcs_rpc_server_reconnect_timeout_s", "value": "600"}


def test_a_head_with_redis_keeps_its_state_there_and_all_wait_for_it(helm: str) -> None:
    """KubeRay gives the head and the nodes that it makes the address and the patience; the pool's own node is the chart's."""
    options = ("--set", "ray.redis.address=redis.ai.svc:6380,ray.redis.secretName=redis,ray.redis.cidr=10.9.0.0/16")
    chart = rendered(helm, "gpus", *options)
    assert chart.one("RayCluster", "ray")["spec"]["gcsFaultToleranceOptions"] == {
        "redisAddress": "redis.ai.svc:6380",
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "redis", "key": "redis-password"}}},
    }
    pool = chart.pod("pool")
    assert [PATIENCE in container["env"] for container in pool.containers] == [True, True]
    (policy,) = [one for one in chart.all("NetworkPolicy") if one["spec"]["podSelector"]["matchLabels"].get(PART) == "ray-head"]
    allowed = {"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}], "ports": [{"protocol": "TCP", "port": 6380}]}
    assert allowed in policy["spec"]["egress"]


def test_without_redis_nothing_says_that_there_is_one(helm: str) -> None:
    chart = rendered(helm, "gpus")
    assert "gcsFaultToleranceOptions" not in chart.one("RayCluster", "ray")["spec"]
    assert not [container for container in chart.pod("pool").containers if PATIENCE in container["env"]]
