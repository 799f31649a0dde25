"""Processes of users that run beside a device, in a sandbox (``docs/developers/exec.md``)."""
