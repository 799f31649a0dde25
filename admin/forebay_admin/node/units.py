"""The units of Ray: on the control host the head, to which the pool connects, and on each other host a node."""

from __future__ import annotations

from collections.abc import Mapping

from forebay_admin.host.layout import Layout
from forebay_admin.host.units import (
    AWAITED,
    CLOSED,
    HARDENED,
    STARTS_WORKERS,
    TARGET,
    WORKER,
    Settings,
    account,
    service_command,
    starting_workers,
    text,
)
from forebay_admin.node.invitation import Invitation

HEAD, NODE = "forebay-ray", "forebay-node"
HEAD_PORT = 6379
PORTS = {
    "node-manager-port": 6380,
    "object-manager-port": 6381,
    "runtime-env-agent-port": 6382,
    "dashboard-agent-listen-port": 6383,
    "dashboard-agent-grpc-port": 6384,
    "metrics-export-port": 6385,
}
"""Ray's own on each host. Its workers' and Forebay's are above."""
START_SECONDS_MAX = 120
"""What Ray gives a node to start, instead of 30 s, which a busy host may take."""
HEALTH = ["RAY_health_check_period_ms=3000", "RAY_health_check_timeout_ms=5000", "RAY_health_check_failure_threshold=4"]
"""A host that answers the head nothing is lost after half a minute; by Ray's own settings it would be after more than a minute."""
WORKER_PORTS = (10_002, 19_999)
STORE_BYTES = 80 * 2**20
"""Of Ray's object store, which holds what actors are sent: no tensor goes through it."""
CREDENTIALS = ("node.crt", "node.key", "nodes-ca.crt")
WEB_AUTHORITY = "ca.crt"
"""Whom workers trust that link up with the pool; it lies beside the folder of the other certificates, which is root's."""
ACCOUNTS = account("node") + account(WORKER)
POOL_ACCOUNT = "forebay-pool"
"""The head runs as the pool does, since a program that uses Ray opens its sockets and files."""


def node_unit(layout: Layout, invitation: Invitation, labels: Mapping[str, str], gpus: int) -> str:
    """Of Ray's node on a host with devices. Its group is the workers', since what they park on the disk is in its folder."""
    pairs = ",".join(f"{name}={value}" for name, value in labels.items() if value)
    options = [f"--address={invitation.head}", f"--labels={pairs}", f"--num-gpus={gpus}"]
    trust = [f"SSL_CERT_FILE={layout.settings}/{WEB_AUTHORITY}"] if invitation.web_authority else []
    own = _service(layout, NODE, NODE, invitation.address, options, trust)
    service: Settings = {
        **own,
        **STARTS_WORKERS,
        "ExecStart": starting_workers(layout, NODE, invitation.worker_uids, str(own["ExecStart"])),
        "Group": f"forebay-{WORKER}",
        "StateDirectory": "forebay/spill",
        "StateDirectoryMode": "1730",
        "LimitMEMLOCK": "infinity",
    }
    return _unit("this host's devices, lent by the pool", service)


def head_unit(layout: Layout, address: str) -> str:
    """Of the cluster's head, which offers no device."""
    options = ["--head", f"--port={HEAD_PORT}", "--include-dashboard=false", "--num-gpus=0"]
    return _unit("the head of the cluster of hosts", _service(layout, HEAD, POOL_ACCOUNT, address, options, HEALTH), TARGET)


def pool_drop_in(layout: Layout) -> str:
    """What the pool's unit has beside, so that it may connect to the head. It starts no worker on this host, and enters no user namespace:
    in one, it and Ray's processes would not see each other."""
    service: Settings = {
        "ExecStart": ["", service_command(layout, "pool")],
        "CapabilityBoundingSet": CLOSED["CapabilityBoundingSet"],
        "RestrictNamespaces": CLOSED["RestrictNamespaces"],
        "Environment": _tls(layout, POOL_ACCOUNT),
        "LoadCredential": _credentials(layout),
        "ReadWritePaths": str(layout.root / "run" / HEAD),
    }
    return text({"Unit": {"Wants": f"{HEAD}.service", "After": f"{HEAD}.service"}, "Service": service})


def _unit(what: str, service: Settings, target: str = "multi-user.target") -> str:
    unit = {"Description": f"Forebay: {what}", "Wants": "network-online.target", "After": "network-online.target"}
    return text({"Unit": unit, "Service": service, "Install": {"WantedBy": target}})


def _service(layout: Layout, unit: str, account: str, address: str, options: list[str], variables: list[str]) -> Settings:
    ports = [f"--{name}={port}" for name, port in PORTS.items()]
    ports += [f"--min-worker-port={WORKER_PORTS[0]}", f"--max-worker-port={WORKER_PORTS[1]}"]
    folder = str(layout.root / "run" / unit)  # closed to others; Ray opens the one below it to everybody
    quiet = ["--include-log-monitor=false", "--disable-usage-stats", f"--object-store-memory={STORE_BYTES}"]
    words = [f"{layout.prefix}/bin/ray start --block --node-ip-address={address} --temp-dir={folder}/ray", *options, *ports, *quiet]
    own = [f"HOME={folder}", "RAY_enable_worker_prestart=0", f"RAY_raylet_start_wait_time_s={START_SECONDS_MAX}", *_tls(layout, unit)]
    return {
        **HARDENED,
        **CLOSED,
        **AWAITED,
        "User": account,
        "Group": account,
        "ExecStart": " ".join(words),
        "Environment": [*own, *variables],
        "LoadCredential": _credentials(layout),
        "RuntimeDirectory": unit,
        "RuntimeDirectoryMode": "0700",
        "Restart": "always",
        "RestartSec": "5",
        "KillMode": "mixed",
        "TimeoutStopSec": "60",
    }


def _credentials(layout: Layout) -> list[str]:
    return [f"{name}:{layout.settings}/tls/{name}" for name in CREDENTIALS]


def _tls(layout: Layout, unit: str) -> list[str]:
    """Each side of each of Ray's connections shows a certificate of the cluster's authority."""
    folder = layout.credentials(unit)
    names = {"SERVER_CERT": "node.crt", "SERVER_KEY": "node.key", "CA_CERT": "nodes-ca.crt"}
    return ["RAY_USE_TLS=1", *(f"RAY_TLS_{name}={folder}/{file}" for name, file in names.items())]
