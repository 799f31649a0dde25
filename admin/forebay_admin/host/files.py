"""The files of an installation on one host, made of the answers. What is secret, and the certificates, are made once and kept."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

from forebay_admin.certificates import signing
from forebay_admin.certificates.signing import Pair
from forebay_admin.host.answers import Answers, InitError, quoted
from forebay_admin.host.layout import LISTENERS, Layout
from forebay_admin.host.units import PLAINTEXT, SERVICES, accounts, units, worker_account

PUBLIC, PRIVATE = 0o644, 0o600
TOKEN_BYTES = 32
DISCOVER_SECONDS_MAX = 120
HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
"""What ``ProtectHome=yes`` hides."""
CPU_DEVICES = """\
# Two devices for trying: they compute on this host's CPU.
[[devices]]
kind = "cpu"
model = "cpu-dev"
memory = "4 GiB"
count = 2
"""
POOL_HEAD = "# Every setting: python -m forebay_pool --help. This file is yours: it stays as it is when init runs again.\n"
HUB_CONFIG = """\
# Read by JupyterHub when the unit forebay-hub starts. What you set below the last line counts; all else is in host.toml and hub.toml.
from pathlib import Path

from forebay_hub.host import configure_host

c = get_config()  # noqa: F821 - JupyterHub provides it
configure_host(c, Path({folder}))
"""
PROXY_CONFIG = """\
# Traefik's own settings. Its routes are the hub's ({routes}).
[entryPoints.https]
address = ":{port}"
[entryPoints.https.http.tls]
options = "default"
{resolver}[entryPoints.https.transport.respondingTimeouts]
readTimeout = "0s"
[entryPoints.auth_api]
address = "127.0.0.1:{api}"
[api]
[global]
checkNewVersion = false
sendAnonymousUsage = false
[providers]
providersThrottleDuration = "0s"
[providers.file]
directory = {routes}
watch = true
"""
PROXY_RESOLVER = """\
certResolver = "acme"
[[entryPoints.https.http.tls.domains]]
main = {name}
"""
PROXY_ACME = """\
[certificatesResolvers.acme.acme]
email = {mail}
caServer = {server}
storage = {storage}
[certificatesResolvers.acme.acme.tlsChallenge]
"""


@dataclass(frozen=True)
class File:
    path: Path
    content: bytes
    mode: int = PUBLIC
    kept: bool = False
    """Made once: one that is there stays as it is."""


def files(answers: Answers, layout: Layout) -> list[File]:
    """All of them, those that are there and differ too. Raises InitError."""
    hidden = next((home for home in HOMES if layout.prefix.is_relative_to(home)), None)
    if hidden is not None and layout.root == Path("/"):
        raise InitError(f"The units do not see {hidden}, where {layout.prefix} is; install into another folder, such as /opt/forebay.")
    settings = layout.settings
    texts = {
        settings / "answers.toml": answers.toml,
        settings / "proxy.toml": _proxy(answers, layout),
        settings / "host.toml": _host(answers, layout),
        layout.accounts: accounts(),
        **{layout.units / name: text for name, text in units(answers, layout).items()},
    }
    found = [File(path, text.encode()) for path, text in texts.items()]
    return [*found, *_for_operators(answers, layout), *_secrets(answers, layout), *_tls(answers, layout)]


def _for_operators(answers: Answers, layout: Layout) -> list[File]:
    """What operators go on to edit."""
    settings = layout.settings
    pool = settings / "pool.toml"
    texts = {
        pool: "" if pool.exists() else _pool(answers, layout),  # devices are looked for once
        settings / "hub.toml": _hub(answers),
        settings / "billing.toml": f"# Every setting: python -m forebay_billing --help\ncurrency = {quoted(answers.currency)}\n",
        settings / "dashboards.toml": _dashboards(answers),
        settings / "edge.toml": "# Every setting: python -m forebay_edge --help\n",
        settings / "jupyterhub_config.py": HUB_CONFIG.format(folder=quoted(str(settings))),
    }
    return [File(path, text.encode(), kept=True) for path, text in texts.items()]


def _dashboards(answers: Answers) -> str:
    return f"# Every setting: python -m forebay_dashboards --help\npublic_url = {quoted(answers.url)}\n"


def _address(answers: Answers, listener: str) -> str:
    return f"http://127.0.0.1:{answers.first_port + LISTENERS.index(listener)}"


def _proxy(answers: Answers, layout: Layout) -> str:
    api = answers.first_port + LISTENERS.index("proxy")
    routes = layout.state / "routes"  # the proxy may write nowhere else
    resolver = PROXY_RESOLVER.format(name=quoted(answers.name)) if answers.acme else ""
    written = PROXY_CONFIG.format(port=answers.port, api=api, routes=quoted(str(routes)), resolver=resolver)
    if not answers.acme:
        return written
    told = {"mail": answers.acme, "server": answers.acme_server, "storage": str(routes / "acme.json")}
    return written + PROXY_ACME.format(**{name: quoted(value) for name, value in told.items()})


def _host(answers: Answers, layout: Layout) -> str:
    credentials = layout.credentials("forebay-proxy")
    values = {
        "name": answers.name,
        "state": str(layout.state),
        "notebook": answers.notebook or str(layout.prefix / "notebook"),
        "certificate": str(credentials / "server.crt"),
        "key": str(credentials / "server.key"),
    }
    lines = [f"{name} = {quoted(value)}" for name, value in values.items()]
    return "\n".join(["[host]", *lines, f"port = {answers.port}", f"first_port = {answers.first_port}"]) + "\n"


def _hub(answers: Answers) -> str:
    tenant = f"[tenants.{answers.tenant}]\nowners = [{quoted(answers.owner)}]\nmembers = []\n"
    head = "# Who signs in, and who pays. A login is in one tenant, or is an operator.\n"
    return f"{head}operators = [{quoted(answers.operator)}]\n\n{tenant}"


def _pool(answers: Answers, layout: Layout) -> str:
    devices = CPU_DEVICES if answers.devices == "cpu" else _discovered(layout)
    default = 'default_flavor = "dev.4gb"\n' if answers.devices == "cpu" else ""
    return f"{POOL_HEAD}{default}\n{devices}"


def _discovered(layout: Layout) -> str:
    """This host's accelerators, as the pool sees them. Raises InitError."""
    command = [str(layout.python), "-m", "forebay_pool", "--discover", "--log-level", "error"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    try:
        done = subprocess.run(command, env=kept, capture_output=True, text=True, check=False, timeout=DISCOVER_SECONDS_MAX)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InitError(f"This host's accelerators cannot be looked for ({error}).") from None
    if done.returncode != 0 or "[[devices]]" not in done.stdout:
        said = (done.stderr.strip().splitlines() or ["none is seen"])[-1]
        raise InitError(f"This host has no accelerator that can be lent ({said}); answer cpu for two devices to try with.")
    return done.stdout


def _secrets(answers: Answers, layout: Layout) -> list[File]:
    """A file of environment variables for each unit; only root reads them, as systemd does before it starts one."""
    folder = layout.settings / "secrets"
    known = _known(folder / "hub.env")
    names = ["METRICS_TOKEN", "PROXY_PASSWORD", *(f"TOKEN_OF_{name.upper()}" for name in SERVICES)]
    tokens = {name: known.get(f"FOREBAY_HUB_{name}") or secrets.token_hex(TOKEN_BYTES) for name in names}
    urls = {name: answers.database_of(name) for name in ("hub", "pool", "billing")}
    hub = {f"FOREBAY_HUB_{name}": token for name, token in tokens.items()} | _given("FOREBAY_HUB_DATABASE_URL", urls["hub"])
    found = {"hub": hub}
    for name in SERVICES:
        own = f"FOREBAY_{name.upper()}"
        found[name] = {
            "JUPYTERHUB_SERVICE_NAME": name,
            "JUPYTERHUB_API_URL": f"{_address(answers, 'hub')}/hub/api",
            "JUPYTERHUB_API_TOKEN": tokens[f"TOKEN_OF_{name.upper()}"],
            "JUPYTERHUB_SERVICE_URL": _address(answers, name),
            "JUPYTERHUB_SERVICE_PREFIX": f"/services/{name}/",
            f"{own}_METRICS_TOKEN": tokens["METRICS_TOKEN"],
            **_given(f"{own}_DATABASE_URL", urls.get(name)),
        }
    for name in ("pool", "billing"):
        found[name][f"FOREBAY_{name.upper()}_STATE_DIR"] = str(layout.state / name)
    pool, billing = (f"{_address(answers, name)}/services/{name}/" for name in ("pool", "billing"))
    found["pool"] |= {"FOREBAY_POOL_SOCKET_DIR": str(layout.sockets), "FOREBAY_POOL_BILLING_URL": billing}
    found["pool"] |= {"FOREBAY_POOL_WORKER_ACCOUNT": json.dumps(worker_account(answers.worker_uids))}
    if _lends_on_other_hosts(layout):
        found["pool"][PLAINTEXT] = "true"
    found["dashboards"] |= {"JUPYTERHUB_CLIENT_ID": "service-dashboards"}  # as the hub calls it; people sign in to no other
    found["dashboards"] |= {"FOREBAY_DASHBOARDS_POOL_URL": pool, "FOREBAY_DASHBOARDS_BILLING_URL": billing}
    found["edge"]["FOREBAY_EDGE_POOL_URL"] = pool
    copies = [_given(f"FOREBAY_{name.upper()}_DATABASE_URL", urls.get(name)) for name in ("pool", "billing", "hub")]
    found["backup"] = {"FOREBAY_STATE": str(layout.state), **copies[0], **copies[1], **copies[2]}
    return [File(folder / f"{name}.env", _environment(values), PRIVATE) for name, values in found.items()]


def _lends_on_other_hosts(layout: Layout) -> bool:
    """Whether the pool does, and its operator said nothing of ``plaintext``, which releases before had not and did in any case."""
    file = layout.settings / "pool.toml"
    try:
        said = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except tomllib.TOMLDecodeError as error:
        raise InitError(f"{file} is not TOML: {error}.") from None
    return "plaintext" not in said and (layout.pool_drop_in.exists() or said.get("launcher") == "ray")


def _given(name: str, value: str | None) -> dict[str, str]:
    return {} if value is None else {name: value}


def _environment(values: dict[str, str]) -> bytes:
    """As ``EnvironmentFile`` reads it: single quotes take everything as it stands. Raises InitError."""
    for name, value in values.items():
        if "'" in value or "\n" in value:
            raise InitError(f"{name} has a quote or a line break; write it in another way, such as %27.")
    return "".join(f"{name}='{value}'\n" for name, value in values.items()).encode()


def _known(file: Path) -> dict[str, str]:
    """What such a file says."""
    if not file.exists():
        return {}
    pairs = (line.partition("=") for line in file.read_text(encoding="utf-8").splitlines() if "=" in line)
    return {name: value.strip("'") for name, _, value in pairs}


def _tls(answers: Answers, layout: Layout) -> list[File]:
    """The given certificate, or one of an authority that is made here and kept. Raises InitError."""
    folder = layout.settings / "tls"
    if answers.certificate:
        try:
            given = Pair(Path(answers.certificate).read_bytes(), Path(answers.key).read_bytes())
        except OSError as error:
            raise InitError(f"{error.filename} cannot be read ({error.strerror}).") from None
        return [File(folder / "server.crt", given.certificate), File(folder / "server.key", given.key, PRIVATE)]
    authority = Pair.read(folder, "ca") or signing.new_authority(answers.name)
    server = Pair.read(folder, "server")
    if server is None or not signing.is_of(server.certificate, answers.name):
        server = signing.new_server(answers.name, authority)
    return [
        File(folder / "ca.crt", authority.certificate),
        File(folder / "ca.key", authority.key, PRIVATE),
        File(folder / "server.crt", server.certificate),
        File(folder / "server.key", server.key, PRIVATE),
    ]
