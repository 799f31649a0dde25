"""Holds together what a notebook shows of its devices: one for each shell."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from forebay.errors import ForebayError, NotConfigured
from forebay.journal import Journal
from forebay.notebook import checkpoints, magics, status
from forebay.notebook.channel import Channel
from forebay.notebook.lines import CellLines, DisplayLine
from forebay.notebook.notifier import Notifier
from forebay.notebook.output import Output
from forebay.notebook.transcript import Transcript
from forebay.texts import Texts, language_here, language_of
from forebay.waiting import offered

GATHER_SECONDS = 0.05
"""Changes that come within so long are told at once."""
ASKED_MAX = 32
"""Requests of front ends that wait; more are refused."""
BEAT_SECONDS = 3.0
"""While a device works, or is waited for, all is told this often: its memory changes, and pages may have been loaded anew."""
WATCHED_SECONDS = 300.0
"""For so long after a front end asked for the overview it is told what changes in it: asking while a cell runs would have it show
the kernel as idle, since answers come from another shell."""
OVERVIEW_SECONDS = 1.0
"""Between two of those."""

Answer = Callable[[Mapping[str, Any]], None]

log = logging.getLogger(__name__)


class Presenter:
    """Has two threads, begun when they are needed: one tells what changed, the other asks the service for who wants to know."""

    def __init__(self, shell: Any) -> None:
        self.texts = Texts(language_here())
        self.output = Output(shell)
        self.journal = Journal()
        self.lines = CellLines(self.output, self.journal, self.texts)
        self.channel = Channel(self.output, self._heard)
        self.transcript = Transcript(shell, self.output, self.texts, self.channel.say)
        self.notifier = Notifier(shell, self.journal, self.texts, self.channel.say, self._post, self._change)
        self.home: Mapping[str, Any] | None = None
        """The flavor that the first device begins with."""
        self.budget: Mapping[str, Any] | None = None
        self.budget_known = True
        self.problem: str | None = None
        """Why the last look at the service failed, for people."""
        self._shell = shell
        self._changed = threading.Event()
        self._asked: queue.Queue[tuple[Mapping[str, Any], Answer]] = queue.Queue(ASKED_MAX)
        self._beginning = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._watched_ns: int | None = None

    def begin(self) -> None:
        """Adds the magics, and lets front ends connect."""
        magics.register(self._shell, self)
        checkpoints.register(self._shell, self.texts)
        self.journal.listen(self._change)
        if self.output.updates:
            self.transcript.begin()
            self.notifier.begin()
            self.channel.register()
            self.channel.offer()

    def new_line(self) -> DisplayLine:
        """The line of a wait that begins."""
        return DisplayLine(self.output, self.lines, self.texts, lambda: self.channel.attached)

    def snapshot(self) -> status.Snapshot:
        """How all stands now."""
        state = status.snapshot(self.journal, self.home, self.budget if self.budget_known else None, self.lines.quiet, self.texts)
        return {**state, "budget_known": self.budget_known, "problem": self.problem, "notify": self.notifier.setting}

    def hush(self, quiet: bool) -> None:
        """Whether cells go without their line."""
        self.lines.quiet = quiet
        self._change()

    def look(self) -> None:
        """Asks the service what it knows better: the flavor to begin with, and what is left of the budget. What fails is shown."""
        problems = [self._look_at_flavors(), self._look_at_budgets()]
        self.problem = next((problem for problem in problems if problem is not None), None)

    def _look_at_flavors(self) -> str | None:
        from forebay.notebook import service_calls

        try:
            self.home = next((row for row in service_calls.flavors() if row["chosen"]), None)
        except NotConfigured as error:  # a pool of this process's own that did not start yet
            log.info("flavors are not known yet: %s", error, extra={"action": "look"})
        except ForebayError as error:
            return self.texts.error(error)
        return None

    def _look_at_budgets(self) -> str | None:
        from forebay.notebook import service_calls

        try:
            self.budget, self.budget_known = service_calls.tightest(service_calls.budgets()), True
        except ForebayError as error:
            self.budget_known = False
            return self.texts("budget_unknown", why=self.texts.error(error))
        return None

    # Front ends

    def _heard(self, said: Mapping[str, Any], answer: Answer) -> None:
        self._start()
        if "locale" in said:
            self.texts.language = language_of(str(said["locale"]))
        if isinstance(said.get("quiet"), bool):
            self.hush(bool(said["quiet"]))
        if isinstance(said.get("notify"), Mapping):
            self._notify(said["notify"])
        if "ask" not in said:
            answer(self.snapshot())
            said = {"ask": "look"}
        try:
            self._asked.put_nowait((said, answer))
        except queue.Full:
            answer({"type": "answer", "id": said.get("id"), "error": "Too much was asked at once; try again."})

    def _notify(self, said: Mapping[str, Any]) -> None:
        try:
            after_seconds = float(said.get("after_seconds", self.notifier.after_seconds))
            self.notifier.set(bool(said.get("on")), after_seconds, bool(said.get("channels")))
        except (TypeError, ValueError) as error:  # typed into the notebook's file
            log.info("a setting was not taken: %s", error, extra={"action": "notify"})

    def _start(self) -> None:
        with self._beginning:
            if not self._threads:
                for work, name in ((self._tell, "forebay-tell"), (self._serve_calls, "forebay-calls")):
                    self._threads.append(threading.Thread(target=work, name=name, daemon=True))
                    self._threads[-1].start()

    def _change(self) -> None:
        self._changed.set()
        if not self._threads:
            self._start()

    def _tell(self) -> None:
        """Tells what changed, and mends lines. What cells end with is worth a look at the budget."""
        closed = 0
        while True:
            watched = self.channel.attached or self.notifier.on
            changed = self._changed.wait(BEAT_SECONDS if watched and self.journal.busy else None)
            self._changed.clear()
            self.lines.mend()
            self.notifier.look()
            if self.channel.attached:
                state = self.snapshot()
                self.channel.say(state)
                if changed and self._watched:
                    self._later("watch")
                if not self.journal.busy and state["device_ns"] != closed:
                    closed = state["device_ns"]
                    self._later("look")
            time.sleep(GATHER_SECONDS)

    @property
    def _watched(self) -> bool:
        return self._watched_ns is not None and time.monotonic_ns() - self._watched_ns < WATCHED_SECONDS * 1e9

    def _later(self, what: str, **more: Any) -> None:
        with contextlib.suppress(queue.Full):
            self._asked.put_nowait(({"ask": what, **more}, _to_nobody))

    def _post(self, notice: Mapping[str, Any]) -> None:
        """Has the person's channels told."""
        self._start()
        self._later("post", notice=notice)

    def _serve_calls(self) -> None:
        while True:
            said, answer = self._asked.get()
            try:
                value = self._value(said)
            except ForebayError as error:
                answer({"type": "answer", "id": said.get("id"), "error": self.texts.error(error)})
            except Exception as error:
                log.exception("a front end got no answer", extra={"action": said.get("ask")})
                answer({"type": "answer", "id": said.get("id"), "error": f"{type(error).__name__}: {error}"})
            else:
                answer({"type": "answer", "id": said.get("id"), "value": value})

    def _value(self, said: Mapping[str, Any]) -> Any:
        """What was asked for. Raises ForebayError."""
        from forebay.notebook import service_calls

        match said.get("ask"):
            case "look":
                self.look()
                self._change()
                return None
            case "overview":
                self._watched_ns = time.monotonic_ns()
                return self._overview()
            case "watch":
                self.channel.say({"type": "overview", **self._overview()})
                time.sleep(OVERVIEW_SECONDS)
                return None
            case "choose":
                self.home = service_calls.choose(str(said.get("flavor")), int(said.get("device", 0)))
                self._change()
                return self.home
            case "post":
                service_calls.post(said["notice"])
                return None
            case "share":
                return service_calls.share(str(said.get("notebook")), int(said["days"]))
            case "packages":
                from forebay.toolkit.environments import requirements

                return requirements.recorded_here()
            case "release":
                service_calls.release(str(said.get("session")))
                return {"sessions": service_calls.sessions()}
            case other:
                raise ForebayError(f"This kernel's forebay does not know {other!r}; install the same version on both sides.")

    def _overview(self) -> dict[str, Any]:
        """What there is to choose from, with the wait in words, and the user's sessions. Raises ForebayError."""
        from forebay.notebook import service_calls

        flavors = [{**row, "wait": offered(row, self.texts)} for row in service_calls.flavors()]
        return {"flavors": flavors, "sessions": service_calls.sessions()}


def _to_nobody(_data: Mapping[str, Any]) -> None:
    """Answers what the presenter asks itself."""
