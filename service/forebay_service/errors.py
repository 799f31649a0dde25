"""What can be wrong before a service serves; each message is one sentence that says what to change."""

from __future__ import annotations


class SettingsError(Exception):
    """The settings, or what they name (an address, a file, a database), do not allow a start."""
