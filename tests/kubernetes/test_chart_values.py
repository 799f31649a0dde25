"""What companies set each day: where pods run and what they are called, volumes and profiles of notebooks, hosts of an ingress, builds of
images, logs, groups of an identity provider, idle servers."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay_pool.settings
import hub_in_cluster
import pytest
import yaml
from chart import CHART, PART, RELEASE, Chart, rendered, run
from forebay_hub.groups import Groups, place
from forebay_hub.tenants import Directory, Tenant
from forebay_service.errors import SettingsError
from forebay_service.process import JsonLines
from test_chart_settings import read

PLACED = ("hub", "proxy", "pool", "billing", "dashboards", "edge", "backup")
OWN = {
    "nodeSelector": {"pool": "services"},
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": []}]}}},
    "tolerations": [{"key": "services", "operator": "Exists"}],
    "priorityClassName": "services",
}
NAMED = {"labels": {"cost-centre": "4711"}, "annotations": {"prometheus.io/scrape": "no"}}

Render = Callable[[dict[str, Any]], Chart]


@pytest.fixture
def render(helm: str, tmp_path: Path) -> Render:
    """The example ``gpus`` with these values over its own."""

    def with_values(values: dict[str, Any]) -> Chart:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        return rendered.__wrapped__(helm, "gpus", "--values", str(file))

    return with_values


def example() -> Any:
    return yaml.safe_load((CHART / "examples" / "gpus.yaml").read_text())


def test_each_part_runs_where_its_values_say_under_its_labels(render: Render) -> None:
    ray = {"head": OWN | NAMED, "workerGroups": [group | OWN | NAMED for group in example()["ray"]["workerGroups"]]}
    chart = render({**dict.fromkeys(PLACED, OWN | NAMED), "ray": ray})
    templates = [found["spec"]["template"] for found in chart.all("Deployment")]
    templates += [found["spec"]["jobTemplate"]["spec"]["template"] for found in chart.all("CronJob")]
    (cluster,) = chart.all("RayCluster")
    groups = cluster["spec"]["workerGroupSpecs"]
    templates += [group["template"] for group in [cluster["spec"]["headGroupSpec"], *groups]]
    assert {one["metadata"]["labels"][PART] for one in templates} == {*PLACED, "ray-head", "ray-worker"}
    for one in templates:
        assert {name: one["spec"][name] for name in OWN if name != "affinity"} == {n: v for n, v in OWN.items() if n != "affinity"}
        assert one["spec"]["affinity"].items() >= OWN["affinity"].items()  # type: ignore[attr-defined]
        assert one["metadata"]["labels"].items() >= NAMED["labels"].items()
        assert one["metadata"]["annotations"].items() >= NAMED["annotations"].items()
    workers = [group["template"] for group in groups]
    assert all("podAntiAffinity" in one["spec"]["affinity"] for one in workers), "two workers on a host would be one node's name twice"
    assert all(one["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true" for one in workers)


def test_nothing_is_said_of_hosts_where_no_value_does(helm: str) -> None:
    for pod in rendered(helm, "trying").pods():
        assert not {"nodeSelector", "tolerations", "priorityClassName"} & pod.spec.keys(), pod.part
        assert ("affinity" in pod.spec) == (pod.part == "ray-worker")


@pytest.mark.parametrize("wrong", ["hub.labels.app\\.kubernetes\\.io/name=other", "pool.labels.forebay\\.io/worker-group=none"])
def test_a_label_by_which_the_chart_finds_its_pods_is_refused(helm: str, wrong: str) -> None:
    refused = run(helm, "template", str(CHART), "--values", str(CHART / "examples" / "trying.yaml"), "--set-string", wrong)
    assert refused.returncode != 0 and "invalid propertyName" in refused.stderr


def test_a_worker_group_keeps_two_of_its_pods_apart(helm: str) -> None:
    wrong = "ray.workerGroups[0].affinity.podAntiAffinity.x=1"
    refused = run(helm, "template", str(CHART), "--values", str(CHART / "examples" / "trying.yaml"), "--set", wrong)
    assert refused.returncode != 0 and "affinity" in refused.stderr


def test_a_notebook_has_volumes_containers_variables_and_its_place(render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = {"name": "sync", "image": "registry.example.org/sync:1"}
    user = {
        "storage": {
            "extraVolumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "datasets-{username}"}}],
            "extraVolumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
        },
        "nodeSelector": {"pool": "notebooks"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
            }
        },
        "priorityClassName": "notebooks",
        "extraLabels": {"cost-centre": "4711"},
        "extraAnnotations": {"owner": "{username}"},
        "extraEnv": {
            "HTTPS_PROXY": "http://proxy:3128",
            "KEY": {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}},
        },
        "initContainers": [side | {"name": "first"}],
        "extraContainers": [side],
    }
    app = hub_in_cluster.load(render({"singleuser": user}), tmp_path, monkeypatch)
    pod, _ = hub_in_cluster.notebook(app)
    spec, main = pod["spec"], pod["spec"]["containers"][0]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "datasets-ada"}} in spec["volumes"]
    assert {"name": "home", "mountPath": "/home/notebook"} in main["volumeMounts"], "the chart's own stay"
    assert {"name": "data", "mountPath": "/data", "readOnly": True} in main["volumeMounts"]
    assert [one["name"] for one in spec["containers"]] == ["notebook", "sync"] and spec["initContainers"][0]["name"] == "first"
    assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"pool": "notebooks"}, "notebooks")
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == user["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]  # type: ignore[index]
    assert pod["metadata"]["labels"]["cost-centre"] == "4711" and pod["metadata"]["annotations"]["owner"] == "ada"
    assert pod["metadata"]["labels"]["app.kubernetes.io/instance"] == RELEASE
    variables = {one["name"]: one for one in main["env"]}
    assert variables["HTTPS_PROXY"]["value"] == "http://proxy:3128" and variables["KEY"]["valueFrom"]["secretKeyRef"]["name"] == "keys"


def test_profiles_reach_the_spawner(render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = [{"display_name": "Large", "kubespawner_override": {"mem_limit": "64G"}}]
    app = hub_in_cluster.load(render({"singleuser": {"profileList": profiles}}), tmp_path, monkeypatch)
    assert app.config.KubeSpawner.profile_list == profiles


def test_parked_tensors_go_to_the_volume_that_each_worker_has(render: Render, tmp_path: Path) -> None:
    first, second = example()["ray"]["workerGroups"]
    fast = {"ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "fast"}}}}
    chart = render({"ray": {"spillVolume": {"emptyDir": {"sizeLimit": "500Gi"}}, "workerGroups": [first, second | {"spillVolume": fast}]}})
    own = read(chart, "pool", tmp_path)
    pods = [pod for pod in chart.pods() if pod.part == "ray-worker"]
    mounts = [mount for pod in pods for mount in pod.containers[0]["volumeMounts"] if mount["name"] == "spill"]
    assert [mount["mountPath"] for mount in mounts] == [str(own.spill_dir)] * 2
    volumes = [volume for pod in pods for volume in pod.spec["volumes"] if volume["name"] == "spill"]
    assert volumes == [{"name": "spill", "emptyDir": {"sizeLimit": "500Gi"}}, {"name": "spill", **fast}]


def test_without_such_a_volume_nothing_is_spilled(helm: str, tmp_path: Path) -> None:
    assert read(rendered(helm, "gpus"), "pool", tmp_path).spill_dir is None


@pytest.mark.parametrize(("replicas", "mode"), [(2, "ReadWriteMany"), (1, "ReadWriteOnce")])
def test_files_of_jobs_go_to_a_volume_that_all_pools_share_and_that_is_kept(
    render: Render, tmp_path: Path, replicas: int, mode: str
) -> None:
    storage = {"capacity": "2Ti", "storageClass": "shared", "accessModes": [mode]}
    chart = render({"pool": {"replicas": replicas, "jobFiles": {"enabled": True, "storage": storage}}})
    folder, pod = read(chart, "pool", tmp_path).job_files_dir, chart.pod("pool")
    (mount,) = [mount for mount in pod.containers[-1]["volumeMounts"] if mount["name"] == "job-files"]
    assert folder is not None and folder.parent == Path(mount["mountPath"]), "the volume's root is not the pool's own"
    (volume,) = [volume for volume in pod.spec["volumes"] if volume["name"] == "job-files"]
    claim = chart.one("PersistentVolumeClaim", "job-files")
    assert volume["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    wanted = {"accessModes": [mode], "storageClassName": "shared", "resources": {"requests": {"storage": "2Ti"}}}
    assert claim["spec"] == wanted
    others = [other for other in chart.pods() if other.part != "pool"]
    assert not [volume for other in others for volume in other.spec["volumes"] if volume["name"] == "job-files"]


def test_a_volume_of_one_host_for_pools_on_several_is_refused(helm: str) -> None:
    options = ("--set", "pool.jobFiles.enabled=true,pool.jobFiles.storage.accessModes={ReadWriteOnce}")
    refused = run(helm, "template", str(CHART), "--values", str(CHART / "examples" / "gpus.yaml"), *options)
    assert refused.returncode != 0 and "several pools, which lie on several hosts, share a volume of ReadWriteMany" in refused.stderr


def test_without_a_volume_for_them_no_files_of_jobs_are_taken(helm: str, tmp_path: Path) -> None:
    chart = rendered(helm, "gpus")
    assert read(chart, "pool", tmp_path).job_files_dir is None
    assert [claim["metadata"]["name"] for claim in chart.all("PersistentVolumeClaim")] == ["cloud-backup"]


def test_an_ingress_has_several_hosts_and_a_certificate_for_all(render: Render) -> None:
    chart = render({"ingress": {"hosts": ["gpu.example.org", "ai.example.org"]}})
    names = ["ai.example.org", "gpu.example.org"]
    ingress = chart.one("Ingress", "proxy")["spec"]
    assert [rule["host"] for rule in ingress["rules"]] == names and ingress["tls"][0]["hosts"] == names
    assert chart.one("Certificate", "proxy")["spec"]["dnsNames"] == names
    assert len({json.dumps(rule["http"]) for rule in ingress["rules"]}) == 1


def test_images_are_bound_to_their_builds(render: Render) -> None:
    roles = ("hub", "pool", "billing", "dashboards", "node", "notebook", "admin")
    digests = {role: f"sha256:{number:064x}" for number, role in enumerate(roles)}
    proxy = "sha256:" + "f" * 64
    chart = render({"image": {"digests": digests}, "proxy": {"image": {"digest": proxy}}})
    images = {container["image"] for pod in chart.pods() for container in pod.containers}
    images.add(json.loads(chart.file("hub", "chart.json"))["traits"]["KubeSpawner"]["image"])
    given = [group["image"] for group in example()["ray"]["workerGroups"] if "image" in group]
    bound = {f"registry.example.org/ai/forebay-{role}:0.1.0@{digest}" for role, digest in digests.items()}
    assert {image.partition("@")[2] for image in images - set(given)} == {*digests.values(), proxy}
    assert {image.split(":", 1)[0] for image in bound} <= {image.split(":", 1)[0] for image in images}


def test_all_logs_are_json_where_that_is_asked_for(render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chart = render({"logFormat": "json"})
    assert [read(chart, part, tmp_path).log_format for part in ("pool", "billing", "dashboards")] == ["json"] * 3
    for pod in chart.pods():
        for container in pod.containers:
            if container["name"] in ("ray", "ray-head", "ray-worker"):
                assert {"name": "RAY_BACKEND_LOG_JSON", "value": "1"} in container["env"]
    app = hub_in_cluster.load(chart, tmp_path, monkeypatch)
    assert {type(handler.formatter) for handler in app.log.handlers} == {JsonLines}


def of_the_page(language: str, word: str) -> str:
    """The block of the page on Kubernetes that has this word."""
    page = (CHART.parents[1] / "docs" / "operators" / "kubernetes.md").read_text(encoding="utf-8")
    (found,) = [block for block in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) if word in block]
    return str(found)


def test_slices_of_gpus_are_nodes_of_their_own(render: Render, tmp_path: Path) -> None:
    """As the page has them: a process of CUDA sees one slice, so several in a pod would be one."""
    values = yaml.safe_load(of_the_page("yaml", "h100-slices"))
    chart = render(values)
    (pod,) = [pod for pod in chart.pods() if pod.part == "ray-worker"]
    container = pod.containers[0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1 and "affinity" not in pod.spec
    (named,) = [one for one in container["env"] if one["name"] == "NODE_NAME"]
    assert named["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    (group,) = read(chart, "pool", tmp_path).devices
    assert (group.model, group.count, group.memory) == ("H100-3g.40gb", 1, 40 * 2**30)
    assert f"--served-by 1*{group.model}" in of_the_page("sh", "flavors set")


def test_several_slices_in_a_pod_are_refused(helm: str) -> None:
    values = str(CHART / "examples" / "trying.yaml")
    refused = run(helm, "template", str(CHART), "--values", values, "--set", "ray.workerGroups[0].slices=true")
    assert refused.returncode != 0 and "/devices" in refused.stderr


def test_the_images_that_the_page_builds_are_those_that_the_example_names(helm: str) -> None:
    """With the prefix that the page says, and the place of yours for IMAGES."""
    build = of_the_page("sh", "podman push")
    (roles,) = re.findall(r"for role in (.*); do", build)
    (tag,) = re.findall(r"podman push (\S+)", build)
    built = {tag.replace("$role", role).replace("IMAGES", "registry.example.org/ai") for role in roles.split()}
    chart = rendered(helm, "gpus")
    images = {container["image"] for pod in chart.pods() if pod.part != "proxy" for container in pod.containers}
    images.add(json.loads(chart.file("hub", "chart.json"))["traits"]["KubeSpawner"]["image"])
    assert {image for image in images if not image.endswith("-rocm")} == built
    assert {image.removesuffix("-rocm") for image in images} == built


# Servers that nobody uses


def test_idle_servers_are_culled_after_the_time_of_the_values(render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = hub_in_cluster.load(render({"cull": {"timeout": 7200, "every": 60, "maxAge": 86400}}), tmp_path, monkeypatch)
    (service,) = [service for service in app.config.JupyterHub.services if service["name"] == "culler"]
    words = service["command"]
    assert {"--timeout=7200", "--cull-every=60", "--max-age=86400", "--cull-named-servers=False"} <= set(words)
    assert "--url=http://127.0.0.1:8081/hub/api" in words, "policies let the hub reach no Service of its own"


def test_nothing_is_culled_where_that_is_off(render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = hub_in_cluster.load(render({"cull": {"enabled": False}}), tmp_path, monkeypatch)
    assert not [service for service in app.config.JupyterHub.services if service["name"] == "culler"]


# Groups of an identity provider

MADE = {
    "acme": {"groups": {"owners": ["gpu-acme-admins"], "billing": ["gpu-acme-money"], "members": ["gpu-acme"]}},
    "beta": {"owners": ["bea"]},
}


def in_groups(render: Render, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hub whose tenants are groups."""
    values = {"operators": [], "operatorGroups": ["gpu-operators"], "tenants": MADE}
    return hub_in_cluster.load(render(values), folder, monkeypatch)


def signed_in(app: Any, name: str, groups: list[str]) -> Any:
    """What the hub is told of somebody who signs in."""
    base = app.config.JupyterHub.authenticator_class.__mro__[1]

    async def told(_self: Any, _handler: Any, _data: Any) -> Any:
        return {"name": name, "groups": groups}

    made = app.config.JupyterHub.authenticator_class
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "get_authenticated_user", told)
        return asyncio.run(made.get_authenticated_user(made(config=app.config), None, None))


@pytest.mark.parametrize(
    ("told", "tenants"),
    [
        (["gpu-acme"], ["tenant-acme"]),
        (["staff", "gpu-acme-admins"], ["tenant-acme"]),
        (["gpu-acme", "gpu-acme-money"], ["tenant-acme"]),
        (["gpu-operators"], []),
    ],
)
def test_groups_of_an_identity_provider_are_tenants(
    render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str], tenants: list[str]
) -> None:
    app = in_groups(render, tmp_path, monkeypatch)
    assert signed_in(app, "dave", told)["groups"] == [*told, *tenants]


def test_who_is_in_no_group_that_counts_is_refused(render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = in_groups(render, tmp_path, monkeypatch)
    for groups in ([], ["staff"], ["gpu-acme-"]):
        with pytest.raises(Exception, match="403") as refused:
            signed_in(app, "eve", groups)
        assert "is in no group that has a place here" in refused.value.reason


def test_a_provider_s_group_of_a_tenant_s_name_gives_nobody_that_tenant(
    render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = in_groups(render, tmp_path, monkeypatch)
    assert signed_in(app, "dave", ["gpu-acme", "tenant-beta"])["groups"] == ["gpu-acme", "tenant-acme"]


def test_whom_the_values_place_needs_no_group(render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = in_groups(render, tmp_path, monkeypatch)
    assert signed_in(app, "bea", [])["groups"] == ["tenant-beta"]


def test_roles_are_those_of_groups(render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = in_groups(render, tmp_path, monkeypatch)
    held = {role["name"]: role["groups"] for role in app.config.JupyterHub.load_roles}
    own = [groups for name, groups in held.items() if "acme" in name]
    assert sorted(own) == [["gpu-acme-admins"], ["gpu-acme-money"]] and ["gpu-operators"] in held.values()
    assert app.config.Authenticator.manage_groups and app.config.JupyterHub.load_groups == {}
    assert app.config.JupyterHub.authenticator_class.__name__ == "GenericOAuthenticator", "whose settings it has"


def test_the_groups_of_two_tenants_are_both_told_so_that_the_hub_refuses() -> None:
    groups = Groups(tenants={"acme": {"members": frozenset({"a"})}, "beta": {"owners": frozenset({"b"})}})
    nobody = Directory((Tenant("acme", frozenset(), frozenset(), frozenset()),), frozenset())
    assert place("ada", ["a", "b"], groups, nobody) == ["tenant-acme", "tenant-beta"]


def test_a_group_that_is_called_as_a_tenant_is_refused() -> None:
    with pytest.raises(SettingsError, match="tenant-acme"):
        Groups(operators=frozenset({"tenant-acme"}))


def test_operators_or_their_group_must_be_named(helm: str) -> None:
    refused = run(helm, "template", str(CHART), "--values", str(CHART / "examples" / "trying.yaml"), "--set-json", "operators=[]")
    assert refused.returncode != 0 and "operators: name one, or a group" in refused.stderr


def test_the_pool_s_settings_are_a_file_of_toml_without_fractions(helm: str) -> None:
    """Helm's numbers are floating."""
    written = tomllib.loads(rendered(helm, "gpus").file("hub", "hub.toml"))["culling"]
    assert written == {"enabled": True, "timeout_seconds": 3600, "every_seconds": 300, "max_age_seconds": 0}
    assert all(type(value) is not float for value in written.values())
    assert "held_server_seconds" in forebay_pool.settings.Settings.model_fields
