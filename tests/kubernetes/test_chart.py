"""The chart renders, fits three releases of Kubernetes, keeps to the strictest of its security standards, and refuses wrong values."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import hub_in_cluster
import kubernetes_validate
import pytest
import yaml
from chart import CHART, EXAMPLES, Chart, Object, Pod, rendered, run

RELEASES = ("1.29", "1.33", "1.37")
"""The oldest that Chart.yaml permits, the newest that the validator knows, and one between."""
DEFINED_ELSEWHERE = ("cert-manager.io", "monitoring.coreos.com", "ray.io")
"""Groups of objects that are no part of Kubernetes."""
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
SYSCTLS = {"net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range"}
"""Of https://kubernetes.io/docs/concepts/security/pod-security-standards/."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_helm_finds_no_fault(helm: str, example: str) -> None:
    done = run(helm, "lint", "--strict", str(CHART), "--values", str(CHART / "examples" / f"{example}.yaml"))
    assert done.returncode == 0 and "0 chart(s) failed" in done.stdout, done.stdout


@pytest.mark.parametrize("release", RELEASES)
def test_every_object_is_one_of_that_release(chart: Chart, release: str) -> None:
    ours = [found for found in chart.objects if found["apiVersion"].partition("/")[0] not in DEFINED_ELSEWHERE]
    assert len(ours) > 25
    for found in ours:
        kubernetes_validate.validate(found, release, strict=True)


def test_what_ray_makes_pods_of_is_valid_for_pods(chart: Chart) -> None:
    for pod in chart.pods():
        one = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "labels": pod.labels}, "spec": pod.spec}
        kubernetes_validate.validate(one, RELEASES[0], strict=True)


def test_the_validator_would_find_a_mistyped_field(helm: str) -> None:
    broken = copy.deepcopy(rendered(helm, "trying").one("Deployment", "pool"))
    broken["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, RELEASES[0], strict=True)


def test_no_part_of_a_template_failed_without_a_word(chart: Chart) -> None:
    """Helm's ``fromYaml`` gives what went wrong as a value."""
    assert "error converting" not in json.dumps(chart.objects)


def test_names_are_different_and_labelled(chart: Chart) -> None:
    names = [(found["kind"], found["metadata"]["name"]) for found in chart.objects]
    assert len(set(names)) == len(names)
    assert all(found["metadata"]["labels"]["app.kubernetes.io/name"] == "forebay" for found in chart.objects)


WRONG = {
    "hots=ai.example.org": "hots",
    "host=": "/host",
    "operators=null": "operators",
    "operators[0]=Ada": "does not match pattern",
    "hub.config.JupyterHub.authenticator_class=": "authenticator_class",
    "pool.replicas=0": "/pool/replicas",
    "ray.workerGroups[0].kind=tpu": "kind",
    "ray.workerGroups[0].kind=cuda": "missing property 'resource'",
    "ray.workerGroups[0].runtimeClassName=NVIDIA": "does not match pattern",
    "database.urls.pool=sqlite:////tmp/pool": "/database/urls/pool",
    "certificate.issuer.name=letsencrypt": "certificate.secretName: name the Secret",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_value_is_refused_by_name(helm: str, wrong: str) -> None:
    values = str(CHART / "examples" / "trying.yaml")
    refused = run(helm, "template", str(CHART), "--values", values, "--set", wrong)
    assert refused.returncode != 0 and WRONG[wrong] in refused.stderr, refused.stderr


def test_databases_must_be_given(helm: str) -> None:
    values = str(CHART / "examples" / "gpus.yaml")
    refused = run(helm, "template", str(CHART), "--values", values, "--set", "database.secretName=")
    assert refused.returncode != 0 and "database.urls.hub: the URL of a PostgreSQL database" in refused.stderr


def test_every_value_has_a_place_in_the_schema_and_a_default(helm: str) -> None:
    """A value that the schema does not know would be refused; one without a default would be found by nobody."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert _places(schema) == _keys(values, schema)


def test_every_value_is_described() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    page = (CHART.parents[1] / "docs" / "operators" / "kubernetes.md").read_text(encoding="utf-8")
    told = {name for cell in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE) for name in re.split(r"[^A-Za-z]+", cell)}
    own = {name: list(part.get("properties", ())) for name, part in schema["properties"].items() if name != "global"}
    deeper = [name for part in ("image", "certificate", "ray", "database", "proxy", "hub") for name in own[part] if name != "resources"]
    assert not {*own, *deeper, *schema["definitions"]["workerGroup"]["properties"]} - told - {"resources"}


def _places(schema: Object, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The keys that a schema names."""
    free = path in {("global",), ("hub", "config"), ("certificate", "issuer"), ("database", "urls")}
    inner = {} if free else schema.get("properties", {})
    return {path} - {()} - {("global",)} | {place for name, part in inner.items() for place in _places(part, (*path, name))}


def _keys(values: Any, schema: Object, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The keys of values, as deep as the schema names them."""
    named = isinstance(values, dict) and "properties" in schema
    inner = {name: values[name] for name in values} if named else {}
    parts = schema.get("properties", {})
    return {path} - {()} | {place for name, value in inner.items() for place in _keys(value, parts.get(name, {}), (*path, name))}


def test_all_pods_are_restricted(chart: Chart) -> None:
    for pod in chart.pods():
        assert not breaches(pod.spec), pod.part


def test_a_notebooks_pod_is_restricted(hub: Any) -> None:
    pod, _ = hub_in_cluster.notebook(hub)
    assert not breaches(pod["spec"])


def test_no_pod_has_variables_of_services(chart: Chart, hub: Any) -> None:
    """Where the release is called as its page has it, one of them is ``FOREBAY_POOL_PORT``, which the pool takes for its port."""
    pod, _ = hub_in_cluster.notebook(hub)
    specs = [pod["spec"], *(one.spec for one in chart.pods())]
    assert [spec["enableServiceLinks"] for spec in specs] == [False] * len(specs)


BREACHES: dict[str, Callable[[Any], Any]] = {
    "hostPath": lambda spec: spec["volumes"].append({"name": "host", "hostPath": {"path": "/dev"}}),
    "hostNetwork": lambda spec: spec.update(hostNetwork=True),
    "runAsNonRoot": lambda spec: spec["securityContext"].pop("runAsNonRoot"),
    "seccompProfile": lambda spec: spec["securityContext"].pop("seccompProfile"),
    "allowPrivilegeEscalation": lambda spec: spec["containers"][0]["securityContext"].pop("allowPrivilegeEscalation"),
    "capabilities": lambda spec: spec["containers"][0]["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]),
    "readOnlyRootFilesystem": lambda spec: spec["containers"][0]["securityContext"].pop("readOnlyRootFilesystem"),
    "sysctl": lambda spec: spec["securityContext"].update(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_would_be_found(helm: str, breach: str) -> None:
    spec = copy.deepcopy(rendered(helm, "trying").pod("pool").spec)
    BREACHES[breach](spec)
    assert breach in breaches(spec)


def breaches(spec: Any) -> set[str]:
    """What in a pod is against the standard *restricted*, and a root that can be written."""
    own = spec.get("securityContext", {})
    found = {name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)}
    found |= {kind for volume in spec.get("volumes", ()) for kind in volume.keys() - {"name"} - VOLUMES}
    found |= {"sysctl" for sysctl in own.get("sysctls", ()) if sysctl["name"] not in SYSCTLS}
    for container in Pod("", {}, spec).containers:
        context = {**own, **container["securityContext"]}
        good = {
            "runAsNonRoot": context.get("runAsNonRoot") is True and context.get("runAsUser") != 0,
            "seccompProfile": context.get("seccompProfile", {}).get("type") == "RuntimeDefault",
            "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is False,
            "capabilities": context.get("capabilities") == {"drop": ["ALL"]},
            "readOnlyRootFilesystem": context.get("readOnlyRootFilesystem") is True,
            "privileged": not context.get("privileged"),
            "hostPort": not any("hostPort" in port for port in container.get("ports", ())),
        }
        found |= {name for name, kept in good.items() if not kept}
    return found
