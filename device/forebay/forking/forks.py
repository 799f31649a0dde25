"""Forks of this process: each child's session may begin as a copy of this one's, with a checkpoint that is taken in the moment of the fork.

Nothing is copied for a child that never uses the device. The checkpoint is dropped when no process is left that could begin with it: each
of those holds the writing end of a pipe.
"""

from __future__ import annotations

import itertools
import os
import selectors
import threading
from collections import Counter

from forebay import _C

Taken = tuple[int, int]
"""A checkpoint: its device, and its number."""


class CheckpointNumbers:
    """Numbers of checkpoints ascend in the stream: whoever takes one holds the lock until it is recorded."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._next = itertools.count(1)

    def new(self) -> int:
        return next(self._next)


class Forks:
    """Has a checkpoint taken at each fork, and dropped in time."""

    def __init__(self, numbers: CheckpointNumbers) -> None:
        self._numbers = numbers
        self._pipe: tuple[int, int] | None = None
        """Of the fork that is under way: its reading end stays here, and its writing end in the child."""
        self._selector = selectors.DefaultSelector()
        self._watches = False
        self._needed: Counter[Taken] = Counter()
        """By how many forks each checkpoint is needed."""
        self._held: list[int] = []
        """In a child that has not begun yet: the writing ends of its fork's pipe, and of its parent's if that had not begun either."""

    def begin(self, shares: bool) -> None:
        """Before a fork. ``shares``: this process has a session."""
        self._numbers.lock.acquire()
        if shares:
            self._pipe = os.pipe()
            _C.begin_fork(self._numbers.new())

    def end(self) -> None:
        """After it, in this process."""
        try:
            _C.begin_fork(0)
            if self._pipe is not None:
                (reading, writing), self._pipe = self._pipe, None
                os.close(writing)
                self._watch(reading)
        finally:
            self._numbers.lock.release()

    def _watch(self, reading: int) -> None:
        taken = [(device, number) for device in range(_C.device_count()) if (number := _C.fork_checkpoint(device))]
        if not taken:
            os.close(reading)
            return
        self._needed.update(taken)
        self._selector.register(reading, selectors.EVENT_READ, taken)
        if not self._watches:
            self._watches = True
            threading.Thread(target=self._drop_in_time, name="forebay-forks", daemon=True).start()

    def _drop_in_time(self) -> None:
        """Until no process is left that could begin with a checkpoint of this one's."""
        while self._watches:
            gone = [key for key, _ in self._selector.select()]
            with self._numbers.lock:  # no fork is under way, which might need one of these again
                for key in gone:
                    self._selector.unregister(key.fd)
                    os.close(key.fd)
                    self._drop(key.data)
                self._watches = bool(self._selector.get_map())

    def _drop(self, taken: list[Taken]) -> None:
        self._needed.subtract(taken)
        for device, number in taken:
            if not self._needed[device, number]:
                del self._needed[device, number]
                _C.drop_checkpoint(number, device)

    def begin_child(self) -> None:
        """In a child, which has the one thread that forked."""
        _C.begin_fork(0)
        watched, self._selector = self._selector, selectors.DefaultSelector()
        for key in list(watched.get_map().values()):
            os.close(key.fd)
        watched.close()
        self._watches, self._needed = False, Counter()
        if self._pipe is not None:
            (reading, writing), self._pipe = self._pipe, None
            os.close(reading)
            self._held.append(writing)
        self._numbers.lock.release()

    @property
    def holds(self) -> bool:
        """Whether this process may begin with a checkpoint of the one that it was forked from."""
        return bool(self._held)

    def let_go(self) -> None:
        """This process needs the checkpoint of its fork no more."""
        held, self._held = self._held, []
        for writing in held:
            os.close(writing)


numbers = CheckpointNumbers()
"""Of all checkpoints of this process."""
