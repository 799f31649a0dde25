"""What systemd is asked for: accounts, and a unit that runs or does not."""

from __future__ import annotations

import subprocess

from forebay.errors import ForebayError

STOP_SECONDS_MAX = 120


class SystemdError(ForebayError):
    """What systemd did not do."""


def make_accounts() -> None:
    """Raises SystemdError."""
    call("systemd-sysusers")


def start(unit: str, again: bool) -> None:
    """Starts a unit now and with the host; ``again``: one that runs already, too. Raises SystemdError."""
    call("systemctl", "daemon-reload")
    call("systemctl", "enable", unit)
    call("systemctl", "restart" if again else "start", unit)


def stop(unit: str) -> None:
    """Stops a unit now and for good. Raises SystemdError."""
    call("systemctl", "disable", "--now", unit)


def is_active(unit: str) -> bool:
    """Whether it runs; not where there is no systemd."""
    try:
        command = ["systemctl", "is-active", "--quiet", unit]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def call(*command: str) -> None:
    """Runs a command of systemd's. Raises SystemdError."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=STOP_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError) as error:
        why = (getattr(error, "stderr", None) or str(error)).strip()
        raise SystemdError(f"`{' '.join(command)}` failed: {why}") from None
