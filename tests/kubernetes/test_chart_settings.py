"""What the chart gives each service is what that service reads: settings, addresses, ports, paths, secrets, scopes."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import forebay_billing.http.routes
import forebay_billing.settings
import forebay_dashboards.service
import forebay_dashboards.settings
import forebay_edge.passages
import forebay_edge.settings
import forebay_pool.http.routes
import forebay_pool.settings
import hub_in_cluster
import kubernetes_validate
import pytest
import yaml
from chart import CHECKOUT, POD_IP, RELEASE, Chart, Object, rendered
from forebay.toolkit.command import parser
from forebay_admin.backup import ORDER
from forebay_hub.branding import read_branding
from forebay_hub.roles import CULLER, METRICS_SERVICE, SERVICE_SCOPES
from forebay_hub.services import SERVICES
from forebay_service.errors import SettingsError
from forebay_service.settings import ServiceSettings

SETTINGS: dict[str, type[ServiceSettings]] = {
    "pool": forebay_pool.settings.Settings,
    "billing": forebay_billing.settings.Settings,
    "dashboards": forebay_dashboards.settings.Settings,
    "edge": forebay_edge.settings.Settings,
}
PATHS = {
    "pool": {route.path for route in forebay_pool.http.routes.ROUTES},
    "billing": {route.path for route in forebay_billing.http.routes.ROUTES},
    "dashboards": {path for path, _ in forebay_dashboards.service.ROUTES},
    "edge": {path for path, _ in forebay_edge.passages.ROUTES},
}
"""What each answers to, below its prefix."""


@pytest.fixture
def settings(chart: Chart, tmp_path: Path) -> dict[str, Any]:
    """Of each service, as it reads them in its container."""
    return {part: read(chart, part, tmp_path) for part in SERVICES}


def read(chart: Chart, part: str, folder: Path) -> Any:
    arguments = chart.pod(part).spec["containers"][0]["args"]
    assert arguments == ["--config", f"{hub_in_cluster.MOUNTED}/{part}.toml"]
    file = folder / f"{part}.toml"
    file.write_text(chart.file(part, file.name), encoding="utf-8")
    return SETTINGS[part].load(file, chart.environment(part))


def address(chart: Chart, url: str) -> tuple[str, int]:
    """The part and the port of its pods that an address within the cluster leads to."""
    parts = urlsplit(url)
    name = (parts.hostname or "").removeprefix(f"{RELEASE}-")
    (port,) = [port for port in chart.one("Service", name)["spec"]["ports"] if port["port"] == parts.port]
    part = chart.one("Service", name)["spec"]["selector"]["app.kubernetes.io/component"]
    (found,) = [own["containerPort"] for own in chart.pod(part).spec["containers"][0]["ports"] if own["name"] == port["targetPort"]]
    return part, found


@pytest.mark.parametrize("part", SERVICES)
def test_the_chart_says_that_what_goes_between_pods_is_in_clear_and_an_operator_may_say_otherwise(
    helm: str, part: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    assert settings[part].plaintext, "pods have addresses of their own, so a service would not start without"
    with pytest.raises(SettingsError, match="and this service has no TLS"):
        read(rendered(helm, "trying", "--set", f"{part}.settings.plaintext=false"), part, tmp_path)


@pytest.mark.parametrize("part", SERVICES)
def test_a_service_listens_where_its_address_and_its_probes_look(chart: Chart, settings: dict[str, Any], part: str) -> None:
    own = settings[part]
    assert (own.host, own.prefix) == (POD_IP, f"/services/{part}/")
    assert address(chart, f"http://{RELEASE}-{part}:{own.port}") == (part, own.port)
    container = chart.pod(part).spec["containers"][0]
    probes = [container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {probe["port"] for probe in probes} == {"http"}
    assert {probe["path"].removeprefix(own.prefix) for probe in probes} <= PATHS[part]


def test_services_find_each_other_and_the_hub(chart: Chart, settings: dict[str, Any]) -> None:
    for part, own in settings.items():
        assert address(chart, own.hub_api_url) == ("hub", 8081) and own.hub_api_url.endswith("/hub/api"), part
    for part, other in (("pool", "billing"), ("dashboards", "pool"), ("dashboards", "billing")):
        url = getattr(settings[part], f"{other}_url")
        assert address(chart, url) == (other, settings[other].port)
        assert urlsplit(url).path == settings[other].prefix


def test_databases_are_postgresql_and_each_service_s_own(chart: Chart, settings: dict[str, Any]) -> None:
    urls = [settings["pool"].database, settings["billing"].database, chart.environment("hub")["FOREBAY_HUB_DATABASE_URL"]]
    assert len(set(urls)) == 3 and all(url.startswith("postgresql+psycopg://") for url in urls)


def test_settings_of_the_values_hold(helm: str, tmp_path: Path) -> None:
    chart = rendered(helm, "gpus")
    pool, billing = (read(chart, part, tmp_path) for part in ("pool", "billing"))
    assert (pool.default_flavor, pool.idle_release_seconds) == ("small.64gb", 5.0)
    assert (billing.currency, billing.stripe_mode) == ("EUR", "invoices")
    mounts = chart.pod("billing").spec["containers"][0]["volumeMounts"]
    assert any(billing.stripe_key_file.is_relative_to(mount["mountPath"]) and mount["name"] == "secrets" for mount in mounts)


def test_a_setting_of_the_values_goes_before_the_chart_s_own(helm: str, tmp_path: Path) -> None:
    chart = rendered(helm, "trying", "--set", "pool.settings.advertise_url=http://pool.example.org/services/pool/")
    assert read(chart, "pool", tmp_path).advertise_url == "http://pool.example.org/services/pool/"


def test_all_pools_have_the_address_of_the_one_that_leads(helm: str, tmp_path: Path) -> None:
    """Workers link up there, whichever pool leads; and with more than one a pool that ends leaves its workers to the next."""
    for example, count in (("gpus", 2), ("trying", 1)):
        chart = rendered(helm, example)
        own = read(chart, "pool", tmp_path)
        assert address(chart, own.advertise_url) == ("pool", own.port)
        assert own.replicas == (own.advertise_url,) * count and chart.one("Deployment", "pool")["spec"]["replicas"] == count


def test_each_container_has_the_secrets_of_its_own_and_no_others(chart: Chart) -> None:
    metrics = {"metrics-token"}
    own = {
        "hub": {f"{part}-token" for part in SERVICES} | metrics | {"hub-cookie-secret", "hub-crypt-key", "proxy-token", "hub-database-url"},
        "proxy": {"proxy-token"},
        "pool": {"pool-token", "pool-database-url"} | metrics,
        "billing": {"billing-token", "billing-database-url"} | metrics,
        "dashboards": {"dashboards-token"} | metrics,
        "edge": {"edge-token"} | metrics,
        "backup": {"pool-database-url", "billing-database-url", "hub-database-url"},
    }
    chart_s = (f"{RELEASE}-secrets", "forebay-databases")
    for pod in chart.pods():
        sources = [source for container in pod.containers for source in _key_references(container) if source["name"] in chart_s]
        assert {source["key"] for source in sources} == own.get(pod.part, set()), pod.part


def _key_references(container: Object) -> list[Object]:
    sources = [variable.get("valueFrom", {}) for variable in container.get("env", ())]
    return [source["secretKeyRef"] for source in sources if "secretKeyRef" in source]


def test_secrets_are_as_long_as_they_should_be_and_all_different(chart: Chart) -> None:
    made = {key: value for key, value in chart.secrets().items() if not key.endswith("-database-url")}
    assert len(made) == len(set(made.values())) == 8
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in made.values())


def test_secrets_of_yours_take_the_place_of_the_chart_s(helm: str) -> None:
    chart = rendered(helm, "gpus", "--set", "secretName=ours")
    assert not chart.all("Secret")
    names = {source["name"] for pod in chart.pods() for container in pod.containers for source in _key_references(container)}
    assert names == {"ours", "forebay-databases", "sign-in"}


def test_only_the_hub_speaks_to_kubernetes_and_of_notebooks_alone(chart: Chart) -> None:
    autoscaled = ["ray-head"] if "enableInTreeAutoscaling" in chart.one("RayCluster", "ray")["spec"] else []
    assert [pod.part for pod in chart.pods() if pod.spec["automountServiceAccountToken"]] == ["hub", *autoscaled]
    assert all("serviceAccountName" not in chart.pod(part).spec for part in autoscaled), "KubeRay makes it one of its own"
    assert chart.pod("hub").spec["serviceAccountName"] == f"{RELEASE}-hub"
    rules = chart.one("Role", "hub")["rules"]
    assert {resource for rule in rules for resource in rule["resources"]} == {"pods", "persistentvolumeclaims", "events"}
    assert not {"*", "update", "patch"} & {verb for rule in rules for verb in rule["verbs"]}


# The hub


def test_the_hub_knows_each_service_by_its_token_and_at_its_address(chart: Chart, hub: Any, settings: dict[str, Any]) -> None:
    listed = {service["name"]: service for service in hub.config.JupyterHub.services}
    assert set(listed) == {*SERVICES, METRICS_SERVICE, CULLER}
    for part in SERVICES:
        assert listed[part]["api_token"] == chart.environment(part)["JUPYTERHUB_API_TOKEN"]
        assert address(chart, listed[part]["url"]) == (part, settings[part].port)
        assert settings[part].metrics_token == listed[METRICS_SERVICE]["api_token"]


def test_services_have_the_scopes_that_they_need(hub: Any) -> None:
    roles = {role["name"]: role for role in hub.config.JupyterHub.load_roles}
    assert set(roles["forebay-service"]["services"]) == set(SERVICES)
    assert set(roles["forebay-service"]["scopes"]) == set(SERVICE_SCOPES)
    assert roles["forebay-metrics"]["services"] == [METRICS_SERVICE] and roles["forebay-metrics"]["scopes"] == ["read:metrics"]


def test_tenants_and_operators_are_those_of_the_values(helm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = hub_in_cluster.load(rendered(helm, "gpus"), tmp_path, monkeypatch)
    assert hub.config.JupyterHub.load_groups == {"tenant-acme": {"users": ["ada", "bob", "carol"]}}
    assert hub.config.Authenticator.allowed_users == {"operator", "ada", "bob", "carol"}
    assert hub.authenticator_class.__name__ == "GenericOAuthenticator"


def test_the_installation_has_the_name_of_the_values_on_all_pages(helm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chart = rendered(helm, "gpus", "--set", "look.name=Acme GPUs", "--set", "look.help_url=https://intranet.example/gpu")
    hub_in_cluster.load(chart, tmp_path, monkeypatch)
    branding = read_branding(tmp_path / "hub.toml")
    assert (branding.name, branding.help_url) == ("Acme GPUs", "https://intranet.example/gpu")
    told = chart.environment("dashboards")
    assert (told["FOREBAY_DASHBOARDS_NAME"], told["FOREBAY_DASHBOARDS_HELP_URL"]) == (branding.name, branding.help_url)


def test_a_hub_of_a_later_release_brings_jupyterhub_s_own_tables_up_to_date(hub: Any) -> None:
    assert hub.config.JupyterHub.upgrade_db is True


def test_variables_of_kubernetes_s_services_would_keep_the_pool_from_starting(helm: str, tmp_path: Path) -> None:
    """By which `enableServiceLinks: false` is known to matter."""
    chart = rendered(helm, "trying")
    file = tmp_path / "pool.toml"
    file.write_text(chart.file("pool", file.name), encoding="utf-8")
    linked = chart.environment("pool") | {"FOREBAY_POOL_PORT": "tcp://10.96.0.7:8091", "FOREBAY_POOL_SERVICE_HOST": "10.96.0.7"}
    with pytest.raises(SettingsError, match="FOREBAY_POOL_SERVICE_HOST names no setting"):
        SETTINGS["pool"].load(file, linked)


def test_the_page_s_restore_makes_a_job_of_the_back_up_s(chart: Chart) -> None:
    """What its pipe writes, of what kubectl would send it: with one word a line, as kubectl prints lists."""
    page = (CHECKOUT / "docs" / "operators" / "kubernetes.md").read_text(encoding="utf-8")
    changes = page.partition("--output=json \\\n  | ")[2].partition(" \\\n  | kubectl")[0]
    job = {"kind": "Job", "spec": copy.deepcopy(chart.one("CronJob", "backup")["spec"]["jobTemplate"]["spec"])}
    done = subprocess.run(["sh", "-c", changes], input=json.dumps(job, indent=4), capture_output=True, text=True, check=True)
    made = json.loads(done.stdout)
    arguments = made["spec"]["template"]["spec"]["containers"][0].pop("args")
    assert arguments == ["restore", "/backups", "--newest", "--replace"]
    parser().parse_args(["admin", *arguments])
    job["spec"]["template"]["spec"]["containers"][0].pop("args")
    assert made == job


def test_hub_and_proxy_find_each_other(chart: Chart, hub: Any) -> None:
    hub_port = urlsplit(hub.hub_bind_url).port
    assert address(chart, hub.hub_connect_url) == ("hub", hub_port)
    (proxy,) = chart.pod("proxy").containers
    options = dict(option.removeprefix("--").split("=", 1) for option in proxy["command"][1:])
    assert address(chart, hub.config.ConfigurableHTTPProxy.api_url) == ("proxy", int(options["api-port"]))
    assert address(chart, options["default-target"]) == ("hub", hub_port)
    assert hub.config.ConfigurableHTTPProxy.auth_token == chart.environment("proxy")["CONFIGPROXY_AUTH_TOKEN"]
    assert not hub.config.ConfigurableHTTPProxy.should_start
    public = {port["name"]: port["containerPort"] for port in proxy["ports"]}
    assert public == {"public": int(options["port"]), "api": int(options["api-port"])}


def test_browsers_come_by_the_certificate_s_name(helm: str) -> None:
    ingress = rendered(helm, "gpus")
    (rule,) = ingress.one("Ingress", "proxy")["spec"]["rules"]
    (tls,) = ingress.one("Ingress", "proxy")["spec"]["tls"]
    certificate = ingress.one("Certificate", "proxy")["spec"]
    assert [rule["host"]] == tls["hosts"] == certificate["dnsNames"] == ["ai.example.org"]
    assert tls["secretName"] == certificate["secretName"]
    own = rendered(helm, "trying", "--set", "certificate.secretName=given")
    (service_port,) = own.one("Service", "proxy")["spec"]["ports"]
    (proxy,) = own.pod("proxy").containers
    assert service_port == {"name": "https", "port": 443, "targetPort": "public"}
    folder = next(mount["mountPath"] for mount in proxy["volumeMounts"] if mount["name"] == "certificate")
    assert {f"--ssl-cert={folder}/tls.crt", f"--ssl-key={folder}/tls.key"} <= set(proxy["command"])
    assert proxy["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


# Notebooks


def test_a_notebook_is_made_of_the_values(chart: Chart, hub: Any, settings: dict[str, Any]) -> None:
    pod, claim = hub_in_cluster.notebook(hub)
    (container,) = pod["spec"]["containers"]
    environment = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert address(chart, environment["FOREBAY_URL"]) == ("pool", settings["pool"].port)
    assert address(chart, environment["FOREBAY_BOOKS_URL"]) == ("billing", settings["billing"].port)
    assert address(chart, environment["JUPYTERHUB_API_URL"])[0] == "hub"
    assert container["resources"]["limits"].keys() == {"cpu", "memory"}, "no accelerator"
    assert container["image"].split(":")[0].endswith("notebook")
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume]
    assert claims == [claim["metadata"]["name"]]
    for found in (pod, claim):
        kubernetes_validate.validate(found, "1.29", strict=False)


def test_notebooks_of_two_users_have_homes_of_their_own(hub: Any) -> None:
    names = {hub_in_cluster.notebook(hub, user)[1]["metadata"]["name"] for user in ("ada", "bob")}
    assert len(names) == 2


# Back-ups and monitoring


def test_the_backup_is_a_command_that_there_is(chart: Chart) -> None:
    (container,) = chart.pod("backup").containers
    parsed = parser().parse_args(["admin", *container["args"]])
    assert (parsed.folder, parsed.dated, parsed.keep) == (Path("/backups"), True, 14)
    assert parsed.folder in {Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert [variable["name"] for variable in container["env"]] == [f"FOREBAY_{name.upper()}_DATABASE_URL" for name in ORDER]


def test_prometheus_asks_where_metrics_are_with_the_token_for_them(helm: str, tmp_path: Path) -> None:
    chart = rendered(helm, "gpus")
    jobs = yaml.safe_load((CHECKOUT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    monitors = chart.all("ServiceMonitor")
    asked = {}
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["endpoints"]
        part = monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        assert endpoint["port"] in {port["name"] for port in chart.one("Service", part)["spec"]["ports"]}
        credentials = endpoint["authorization"]["credentials"]
        assert chart.secrets()[credentials["key"]] == chart.environment("hub")["FOREBAY_HUB_METRICS_TOKEN"]
        asked[endpoint["relabelings"][0]["replacement"]] = endpoint["path"]
    assert asked == {job["job_name"]: job["metrics_path"] for job in jobs}, "rules and boards name these jobs"


def test_rules_and_boards_are_those_of_the_other_installations(helm: str) -> None:
    chart = rendered(helm, "gpus")
    files = sorted((CHECKOUT / "deploy" / "prometheus" / "rules").glob("*.yml"))
    shipped = [group for file in files for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]]
    assert chart.one("PrometheusRule", "rules")["spec"]["groups"] == shipped
    folder = CHECKOUT / "deploy" / "grafana" / "dashboards" / "operators"
    boards = {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.json")}
    found = [found for found in chart.all("ConfigMap") if "grafana_dashboard" in found["metadata"]["labels"]]
    assert {name: text for one in found for name, text in one["data"].items()} == boards


def test_numbers_of_the_values_stay_whole_in_toml(helm: str) -> None:
    """Helm has fractions alone; what is whole is read as such."""
    chart = rendered(helm, "gpus")
    devices = tomllib.loads(chart.file("pool", "pool.toml"))["devices"]
    assert [device["count"] == int(device["count"]) for device in devices] == [True, True]
