"""The units of systemd: each service under a uid of its own, with a file system that it cannot write to beside its own folder.

The hub is root, since it starts each login's servers under the login's uid; it keeps only the capabilities that this takes. Each worker
has a uid of its own, and the group ``forebay-worker``, which read nothing of the others.
"""

from __future__ import annotations

from collections.abc import Mapping

from forebay_admin.host.answers import SQLITE, Answers
from forebay_admin.host.layout import Layout

Settings = dict[str, str | list[str]]
"""Of a unit's section; a list is a line for each."""
SERVICES = ("pool", "billing", "dashboards", "edge")
DESCRIPTIONS = {
    "pool": "devices and leases",
    "billing": "prices and books",
    "dashboards": "the pages",
    "edge": "what programs on other machines reach",
}
STATELESS = ("dashboards", "edge")
WORKER = "worker"
PLAINTEXT = "FOREBAY_POOL_PLAINTEXT"
"""The pool's variable for what goes to workers on other hosts."""
DEVICES = "@devices"
"""The groups that open this host's accelerators, looked for whenever a unit or a worker starts (``forebay_service.account``)."""
ACCOUNTS = ("proxy", *SERVICES, WORKER)
"""Who has a uid of its own: ``forebay-NAME``."""
TARGET = "forebay.target"
PRIVILEGED_PORTS = 1024
HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "ProtectHostname": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectControlGroups": "yes",
    "ProtectProc": "invisible",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX AF_NETLINK",
    "LockPersonality": "yes",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
}
CLOSED = {
    "CapabilityBoundingSet": "",
    "RestrictNamespaces": "yes",
    "RemoveIPC": "yes",
    "SystemCallFilter": "@system-service",
    "SystemCallErrorNumber": "EPERM",
}
"""Of what is not root, beside the above. Devices are closed to all but those whose workers open accelerators: ``/dev/kfd``, ``/dev/dri``
and ``/dev/nvidia*``, some of which are there only once a driver was used, so that no list would hold."""
STARTS_WORKERS = {"CapabilityBoundingSet": "CAP_SETGID CAP_SETUID", "RestrictNamespaces": "user"}
"""Of what begins as :func:`starting_workers` says, over the above: what it takes to enter a user namespace."""
AWAITED = {"Type": "exec"}
"""Of what runs on: it counts as started once its folders are there, which a unit after it may have among those that it writes to."""
OUTLIVED = {"RuntimeDirectoryPreserve": "restart", "KillMode": "process"}
"""Workers, and their sockets, outlive a pool that dies, and end by themselves where none comes back. One that is stopped ends them."""
NO_DEVICES = {"PrivateDevices": "yes", "ProtectClock": "yes"}
"""Protecting the clock closes all devices but the system's pseudo devices, too."""
HUB_CAPABILITIES = "CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_KILL CAP_SETGID CAP_SETUID CAP_SYS_ADMIN"
"""To start servers under other uids, give them their homes, stop them, and lay empty files over GPUs for them."""
BACKUP_CAPABILITIES = "CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER"


def units(answers: Answers, layout: Layout) -> dict[str, str]:
    """File name → content."""
    found = {f"forebay-{name}.service": text for name, text in _services(answers, layout).items()}
    target = {"Description": "Forebay", "Wants": " ".join(found)}
    found[TARGET] = text({"Unit": target, "Install": {"WantedBy": "multi-user.target"}})
    return found | _copies(answers, layout)


def accounts() -> str:
    """The accounts of the services, as systemd-sysusers makes them."""
    return "".join(map(account, ACCOUNTS))


def account(name: str) -> str:
    """One of them."""
    return f'u forebay-{name} - "Forebay {name}" - -\n'


def starting_workers(layout: Layout, user: str, uids: str, command: str) -> str:
    """``ExecStart`` of a unit whose workers have accounts of their own, of ``uids``. ``!``: its first process is root, though confined as
    the unit says. It enters a user namespace that knows these accounts alone, and becomes ``user``, who may start others under the other
    ones, in there (``forebay_service.account``)."""
    others = f"forebay-{WORKER},{uids}"
    return f"!{layout.python} -I -m forebay_service.account {user} {user},{DEVICES} --starts {others} -- {command}"


def worker_account(uids: str) -> list[str]:
    """What the pool has its workers run under (its setting ``worker_account``): a uid for each, a group for all, and what opens devices."""
    return [uids, f"forebay-{WORKER}", DEVICES]


def _services(answers: Answers, layout: Layout) -> dict[str, str]:
    python, settings = layout.python, layout.settings
    bind = "CAP_NET_BIND_SERVICE" if answers.port < PRIVILEGED_PORTS else ""
    tls = [f"{name}:{settings}/tls/{name}" for name in ("server.crt", "server.key")]
    proxy: Settings = {
        "ExecStart": f"{layout.prefix}/bin/traefik --configfile {settings}/proxy.toml",
        "LoadCredential": tls,
        "StateDirectory": "forebay/routes",
        "StateDirectoryMode": "0750",
        **CLOSED,
        **NO_DEVICES,
        "CapabilityBoundingSet": bind,
        "AmbientCapabilities": bind,
    }
    hub: Settings = {
        "ExecStart": f"{python} -m jupyterhub --config {settings}/jupyterhub_config.py",
        "EnvironmentFile": f"{settings}/secrets/hub.env",
        "StateDirectory": "forebay/hub",
        "StateDirectoryMode": "0700",
        "ReadWritePaths": f"{layout.state}/homes {layout.state}/routes",
        "WorkingDirectory": f"{layout.state}/hub",
        "CapabilityBoundingSet": HUB_CAPABILITIES,
        "KillMode": "mixed",
        "TimeoutStopSec": "60",
    }
    found = {
        "proxy": _unit("proxy", "the proxy, which browsers reach", "", proxy),
        "hub": _unit("hub", "sign-in and notebooks", "forebay-proxy.service", hub),
    }
    for name in SERVICES:
        found[name] = _unit(name, "", "forebay-hub.service", _service(name, answers, layout))
    return found


def service_command(layout: Layout, name: str) -> str:
    """The command line of a service."""
    return f"{layout.python} -m forebay_{name} --config {layout.settings}/{name}.toml"


def _service(name: str, answers: Answers, layout: Layout) -> Settings:
    own: Settings = {
        "ExecStart": service_command(layout, name),
        "EnvironmentFile": f"{layout.settings}/secrets/{name}.env",
        **CLOSED,
    }
    if name in STATELESS:
        return own | NO_DEVICES
    own |= {"StateDirectory": f"forebay/{name}", "StateDirectoryMode": "0700"}
    if name == "billing":
        return own | NO_DEVICES
    return own | {
        **STARTS_WORKERS,
        "ExecStart": starting_workers(layout, "forebay-pool", answers.worker_uids, service_command(layout, name)),
        "RuntimeDirectory": "forebay",
        "RuntimeDirectoryMode": "0711",
        **OUTLIVED,
        "LimitMEMLOCK": "infinity",
        "TimeoutStopSec": "60",
    }


def _unit(name: str, what: str, after: str, service: Settings) -> str:
    described = what or DESCRIPTIONS[name]
    account = {} if name == "hub" else {"User": f"forebay-{name}", "Group": f"forebay-{name}"}
    # After the target, so that who stops it waits for all that is a part of it.
    unit = {"Description": f"Forebay: {described}", "PartOf": TARGET, "After": f"network-online.target {TARGET} {after}".strip()}
    return text({"Unit": unit, "Service": {**HARDENED, **AWAITED, **account, "Restart": "on-failure", "RestartSec": "2", **service}})


def _copies(answers: Answers, layout: Layout) -> dict[str, str]:
    """Daily back-ups, and once a week the newest one put back into a scratch folder, where it is SQLite's."""
    forebay, backups = f"{layout.prefix}/bin/forebay admin", f"{layout.state}/backups"
    state = {"StateDirectory": "forebay/backups", "StateDirectoryMode": "0700", "CapabilityBoundingSet": BACKUP_CAPABILITIES}
    names: Settings = {"EnvironmentFile": f"{layout.settings}/secrets/backup.env", "Type": "oneshot", **NO_DEVICES, **state}
    writes = f"{layout.state}/pool {layout.state}/billing {layout.state}/hub" if answers.database == SQLITE else ""
    words = f"{forebay} backup {backups} --dated --keep 14"
    words += f" --with {answers.backup_with} --settings {layout.settings}" if answers.backup_with else ""
    words += f" --to {answers.backup_to}" if answers.backup_to else ""
    back_up: Settings = {**names, "ExecStart": words, "ReadWritePaths": writes}
    if answers.backup_to:  # what the program must know, such as keys, is in a file of the operator's
        back_up["EnvironmentFile"] = [str(names["EnvironmentFile"]), f"-{layout.settings}/secrets/backup-target.env"]
        back_up["Environment"] = "HOME=/tmp"
    found = {
        "forebay-backup.service": text({"Unit": {"Description": "Forebay: a back-up"}, "Service": {**HARDENED, **back_up}}),
        "forebay-backup.timer": _timer("Forebay: daily back-ups", "daily"),
    }
    if answers.database == SQLITE:
        scratch = "--pool sqlite:////tmp/pool.sqlite --billing sqlite:////tmp/billing.sqlite3 --hub sqlite:////tmp/hub/hub.sqlite"
        check = {**names, "ExecStart": f"{forebay} restore {backups} --newest {scratch}"}
        what = {"Description": "Forebay: a rehearsed restore"}
        found["forebay-rehearsal.service"] = text({"Unit": what, "Service": {**HARDENED, **check}})
        found["forebay-rehearsal.timer"] = _timer("Forebay: weekly rehearsals of a restore", "weekly")
    return found


def _timer(what: str, when: str) -> str:
    timer = {"OnCalendar": when, "Persistent": "yes", "RandomizedDelaySec": "1h"}
    return text({"Unit": {"Description": what}, "Timer": timer, "Install": {"WantedBy": "timers.target"}})


def text(sections: Mapping[str, Mapping[str, str | list[str]]]) -> str:
    """A unit's file: each section with its settings."""
    parts = []
    for section, settings in sections.items():
        lines = [f"{key}={value}" for key, values in settings.items() for value in ([values] if isinstance(values, str) else values)]
        parts.append("\n".join([f"[{section}]", *lines]) + "\n")
    return "\n".join(parts)
