"""``make test-gpu``: whether Forebay does on this machine's GPU what it should, and at what cost, in parts that run by themselves.

A part (``build``, ``fidelity``, ``memory``, ``park``, ``share``, ``speed``, ``faults``) plays the pool for real workers on the device,
whose clients are processes that see no GPU; where something is compared, another process does the same natively on the same device.
Nothing is imported from a process of another kind: parts start processes (:mod:`gpu.peer`, :mod:`gpu.worker`), and call functions of
:mod:`gpu.programs`, :mod:`gpu.models` and :mod:`gpu.operators` in them by name. ``figures.py`` is the list of all figures with their bars.
"""
