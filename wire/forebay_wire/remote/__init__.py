"""What a client and a worker say to each other of a process that runs beside a device: ``docs/wire.md``, Processes beside a device."""
