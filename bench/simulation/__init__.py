"""The pool in virtual time: the state machine of production among simulated workers, clients and links.

Nothing here decides: :class:`world.World` feeds events to ``StateMachine.handle`` and carries its instructions out on the
:class:`agenda.Agenda`. ``bench/simulate.py`` replays a cluster's trace on it, ``tests/simulation`` breaks it in every way it can.
"""
