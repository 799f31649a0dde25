"""How a training step would be spread over several devices, planned from its recorded command stream: without a device, a pool or a worker.

``forebay plan`` has its parts here. ``recorder`` runs a script on a device that computes nothing, and keeps what it sent; ``iteration``
finds the step that repeats, ``rows`` follows the batch through it and ``step`` says what it keeps, computes and makes; ``recomputation``
makes of it one that keeps less, and ``parallel`` one of which several devices compute each row together; ``machine`` is what it would run
on, ``layout`` how it may be spread, ``cost`` what that takes, ``choice`` which is taken. ``executed`` says which one a session carries out.
"""
