"""A stateful emulator of the part of Stripe that billing uses. Only the real ``stripe`` client talks to it, over HTTP on loopback.

What it does is what Stripe documents: idempotency keys with replay and conflict, meter events with identifiers unique for 24 hours and
timestamps between 35 days ago and 5 minutes ahead, asynchronous meter errors, thin and snapshot webhooks, a list of 30 days of the thin
ones. What it takes is checked
against the parameter types of the installed library, and what it answers against the library's resource classes (``shapes.py``).
"""

from stripe_emulator.emulator import Emulator
from stripe_emulator.faults import Fault

__all__ = ["Emulator", "Fault"]
