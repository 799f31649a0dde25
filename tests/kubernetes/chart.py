"""The chart as Helm renders it, and what its objects mean to who reads them: pods, their variables and files."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
CHART = CHECKOUT / "deploy" / "helm"
EXAMPLES = ("gpus", "trying")
RELEASE = "cloud"
POD_IP = "10.1.2.3"
PART = "app.kubernetes.io/component"

Object = dict[str, Any]


def run(helm: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm, *arguments], capture_output=True, text=True, check=False)


@cache
def rendered(helm: str, example: str, *options: str) -> Chart:
    """The example's values, with ``options`` of Helm after them."""
    values = str(CHART / "examples" / f"{example}.yaml")
    done = run(helm, "template", RELEASE, str(CHART), "--namespace", "ai", "--values", values, *options)
    assert done.returncode == 0, done.stderr
    return Chart([found for found in yaml.safe_load_all(done.stdout) if found is not None])


@dataclass(frozen=True)
class Pod:
    """One kind of pod: of a workload of the chart, or of what an operator of the cluster makes of it."""

    part: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def containers(self) -> list[Object]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    @property
    def ports(self) -> set[int]:
        return {port["containerPort"] for container in self.containers for port in container.get("ports", ())}


@dataclass(frozen=True)
class Chart:
    objects: Sequence[Object]

    def all(self, kind: str) -> list[Object]:
        return [found for found in self.objects if found["kind"] == kind]

    def one(self, kind: str, part: str) -> Object:
        (found,) = [found for found in self.all(kind) if found["metadata"]["name"] == f"{RELEASE}-{part}"]
        return found

    def pods(self) -> Iterator[Pod]:
        templates = [found["spec"]["template"] for found in self.all("Deployment")]
        templates += [found["spec"]["jobTemplate"]["spec"]["template"] for found in self.all("CronJob")]
        for cluster in self.all("RayCluster"):
            groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
            templates += [group["template"] for group in groups]
        for template in templates:
            yield Pod(template["metadata"]["labels"][PART], template["metadata"]["labels"], template["spec"])

    def pod(self, part: str) -> Pod:
        return next(pod for pod in self.pods() if pod.part == part)

    def file(self, part: str, name: str) -> str:
        """Of a part's settings."""
        text: str = self.one("ConfigMap", part)["data"][name]
        return text

    def secrets(self) -> dict[str, str]:
        """What the chart's own Secret holds."""
        data = self.one("Secret", "secrets")["data"]
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def environment(self, part: str) -> dict[str, str]:
        """The variables of a part's own container, as the kubelet sets them. Of a Secret that is not the chart's, keys stand for values."""
        container = next(found for found in self.pod(part).spec["containers"] if found["name"] == part)
        values: dict[str, str] = {}
        for variable in container["env"]:
            values[variable["name"]] = self._value(variable, values)
        return values

    def _value(self, variable: Object, before: Mapping[str, str]) -> str:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            return {"status.podIP": POD_IP, "spec.nodeName": "gpu-7.example.org"}[source["fieldRef"]["fieldPath"]]
        if "secretKeyRef" in source:
            name, key = source["secretKeyRef"]["name"], source["secretKeyRef"]["key"]
            if name == f"{RELEASE}-secrets":
                return self.secrets()[key]
            return f"postgresql+psycopg://forebay@database/{key}" if key.endswith("-database-url") else f"{name}/{key}"
        value: str = variable["value"]
        for name, known in before.items():
            value = value.replace(f"$({name})", known)
        assert "$(" not in value, f"{variable['name']} is expanded from a variable after it"
        return value
