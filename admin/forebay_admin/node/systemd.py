"""What systemd is asked for: accounts, and a unit that runs or does not."""

from __future__ import annotations

import subprocess

from forebay_admin.node.invitation import NodeError

STOP_SECONDS_MAX = 120


def make_accounts() -> None:
    """Raises NodeError."""
    _call("systemd-sysusers")


def start(unit: str, again: bool) -> None:
    """Starts a unit now and with the host; ``again``: one that runs already, too. Raises NodeError."""
    _call("systemctl", "daemon-reload")
    _call("systemctl", "enable", unit)
    _call("systemctl", "restart" if again else "start", unit)


def stop(unit: str) -> None:
    """Stops a unit now and for good. Raises NodeError."""
    _call("systemctl", "disable", "--now", unit)


def is_active(unit: str) -> bool:
    """Whether it runs; not where there is no systemd."""
    try:
        command = ["systemctl", "is-active", "--quiet", unit]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _call(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=STOP_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError) as error:
        why = (getattr(error, "stderr", None) or str(error)).strip()
        raise NodeError(f"`{' '.join(command)}` failed: {why}") from None
