"""Everything between a device's time and Stripe, in virtual time: the pool, its outbox, billing and the exporter, killed at every step.

What is real: the pool's state machine, store and outbox, billing's handlers, writer, ledger and exporter, Stripe's own client, and the
emulator of ``tests/billing``. What is simulated: devices and people (:mod:`simulation.storm`), time, threads and the network.
"""
