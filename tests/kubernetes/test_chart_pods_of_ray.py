"""The chart's Ray, run as its pods would be: head, worker and pool in namespaces of their own, with addresses, /tmp and processes of
their own. It takes root, and a minute."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from chart import CHECKOUT, Chart, rendered
from test_chart_ray import groups

PODS = {"head": "10.77.0.1", "worker": "10.77.0.2", "pool": "10.77.0.3"}
BRIDGE = "forebaychart"
START_SECONDS = 60.0
DRIVER = """
import asyncio, json
from forebay_pool.hosts.ray_launcher import RayLauncher

async def main():
    told = []
    launcher = RayLauncher("{address}", None, (), None, None, lambda nodes: told.append(nodes))
    await launcher.open()
    print(json.dumps([[node.name, node.address, sorted(node.models), node.gpus] for node in told[-1]]))
    await launcher.close()

asyncio.run(main())
"""


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@dataclass
class PodOfRay:
    """A process in namespaces of its own, and what else is run beside it."""

    name: str
    process: subprocess.Popen[bytes]

    @property
    def first(self) -> int:
        """The process that is number 1 in the pod."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def inside(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["nsenter", "--target", str(self.first), "--mount", "--pid", "--net", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment())

    def listens(self) -> set[int]:
        return {int(line.split()[3].rpartition(":")[2]) for line in self.inside("ss", "-ltnH").stdout.splitlines()}


def environment() -> dict[str, str]:
    return {"PATH": f"{CHECKOUT / '.venv' / 'bin'}:{os.defpath}:/usr/sbin:/sbin", "HOME": "/tmp", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture
def network() -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces take root")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "link", "set", BRIDGE, "up")
    try:
        for name, address in PODS.items():
            space, outer = f"{BRIDGE}-{name}", f"fbc{name}"
            run("ip", "netns", "add", space)
            run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "link", "set", outer, "master", BRIDGE, "up")
            run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
            run("ip", "-n", space, "link", "set", "lo", "up")
        yield
    finally:
        for name in PODS:  # a namespace lives on while the kernel has connections to end there; its link must not
            subprocess.run(["ip", "link", "del", f"fbc{name}"], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "del", f"{BRIDGE}-{name}"], check=False, capture_output=True)
        run("ip", "link", "del", BRIDGE)


def started(name: str, options: Sequence[str], doors: str, log: Path) -> PodOfRay:
    """A pod that runs ``ray start`` with these options."""
    text = f"sysctl -qw net.ipv4.ip_local_port_range='{doors}' && mount -t tmpfs tmpfs /tmp && exec ray start --block {' '.join(options)}"
    spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", text]
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["ip", "netns", "exec", f"{BRIDGE}-{name}", *spaces], stdout=output, stderr=output, env=environment()
        )
    return PodOfRay(name, process)


def options_of(chart: Chart) -> dict[str, list[str]]:
    """What KubeRay makes of the parameters, and the pool's own command."""
    cluster = chart.one("RayCluster", "ray")["spec"]
    (group,) = groups(chart)
    flags = {
        name: [f"--{key}" if value == "true" else f"--{key}={value}" for key, value in one["rayStartParams"].items()]
        for name, one in (("head", cluster["headGroupSpec"]), ("worker", group))
    }
    (command,) = group["template"]["spec"]["containers"][0]["args"]
    labels = command.removeprefix("$KUBERAY_GEN_RAY_START_CMD ").replace("$NODE_NAME", "gpu-7")
    head = f"{PODS['head']}:6379"
    own = [word.replace("$(POD_IP)", PODS["pool"]) for word in chart.pod("pool").spec["initContainers"][0]["command"][3:]]
    own = [f"--address={head}" if word.startswith("--address=") else word for word in own]
    return {
        "head": ["--head", "--port=6379", f"--node-ip-address={PODS['head']}", *flags["head"]],
        "worker": [f"--address={head}", f"--node-ip-address={PODS['worker']}", *flags["worker"], labels],
        "pool": own,
    }


@pytest.mark.full_sweep
@pytest.mark.slow
def test_a_pool_in_a_pod_of_its_own_knows_the_nodes_and_nothing_of_ray_listens_among_the_doors(
    network: None, helm: str, tmp_path: Path
) -> None:
    chart = rendered(helm, "trying")
    (sysctl,) = groups(chart)[0]["template"]["spec"]["securityContext"]["sysctls"]
    first, last = map(int, sysctl["value"].split())
    pods: list[PodOfRay] = []
    try:
        for name, options in options_of(chart).items():
            pods.append(started(name, options, sysctl["value"], tmp_path / name))
            until_says(tmp_path / name, r"--block", pods[-1])
        _, worker, pool = pods
        done = pool.inside(sys.executable, "-c", DRIVER.format(address=f"{PODS['head']}:6379"))
        assert done.returncode == 0, done.stderr
        nodes = json.loads(done.stdout.splitlines()[-1])
        assert ["gpu-7", PODS["worker"], ["cpu-dev"], 0] in nodes and len(nodes) == 3
        assert worker.listens() and not [port for port in worker.listens() if first <= port <= last]
    finally:
        for pod in pods:
            pod.process.kill()
            pod.process.wait()


def until_says(log: Path, pattern: str, pod: PodOfRay) -> None:
    """Returns once the log has the pattern, which Ray writes when a node has started."""
    until = time.monotonic() + START_SECONDS
    while not re.search(pattern, text := log.read_text(errors="replace")):
        assert pod.process.poll() is None and time.monotonic() < until, text
        time.sleep(0.2)
