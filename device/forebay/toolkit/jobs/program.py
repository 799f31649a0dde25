"""The program of a job as a child process: how it is started, how its output is read, how it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from forebay.errors import ForebayError
from forebay.service import BUDGET, FLAVOR_VARIABLE, LOSS_VARIABLE
from forebay.spans import ATTEMPT_VARIABLE, JOB_VARIABLE, LABEL_VARIABLE
from forebay.toolkit.environments.environment import Environment, environment, in_use
from forebay.toolkit.jobs.child_processes import end_with_parent
from forebay.toolkit.jobs.output import Output, output_of

READ_BYTES = 65_536
ENDINGS = ((signal.SIGINT, 5.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0))
"""How a program is ended, and for how many seconds it may go on after each. JupyterHub kills a runner after fifteen."""
DRAIN_SECONDS = 2.0
"""What a program started in the background may keep its output open; nobody waits longer for that."""

StopReason = Literal["worker_lost", "budget"]

_NO_BUDGET = f"{BUDGET}\n"


class Program:
    """One run of a job's program, in the user's environment. Raises ForebayError where it cannot be started."""

    def __init__(self, job: Mapping[str, Any], output: Output, variables: Mapping[str, str], root: Path) -> None:
        """``root`` is what the job's paths are relative to: the user's home, or the folder of a job that brought its files."""
        self._output = output
        used = _environment(job)
        descriptor, self._loss = tempfile.mkstemp(prefix="forebay-job-")
        os.close(descriptor)
        folder = root / str(job["folder"])
        own = {**variables, **_told(job), LOSS_VARIABLE: self._loss}
        try:
            self._process = subprocess.Popen(
                _command(job, sys.executable if used is None else str(used.python), root),
                cwd=folder,
                env=own if used is None else used.activated(own),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        except OSError as error:
            self.loss()
            raise ForebayError(f"The job cannot be started in {folder}: {error.strerror}.") from None
        self._reader = threading.Thread(target=self._read, name="forebay-output", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        stream = self._process.stdout
        while stream is not None and (data := os.read(stream.fileno(), READ_BYTES)):
            self._output.write(data)

    def wait(self, seconds: float) -> int | None:
        """The exit status once it has ended, as shells tell it; None where it goes on for so long."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(DRAIN_SECONDS)
        self._output.write(b"", final=True)
        return status

    def end(self) -> int | None:
        """Ends it and all that it started in its session, less and less politely; the exit status."""
        for number, seconds in ENDINGS:
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            self.wait(seconds)
        self.loss()
        return self._process.poll()

    @property
    def waits_for_budget(self) -> bool:
        """Whether it stands still for want of one."""
        return (self._told() or "").startswith(_NO_BUDGET)

    def loss(self) -> tuple[StopReason, str] | None:
        """What stopped it, if it was not itself: the loss of its tensors, or a budget; told once."""
        told = self._told()
        Path(self._loss).unlink(missing_ok=True)
        if not told:
            return None
        return ("budget", told.removeprefix(_NO_BUDGET)) if told.startswith(_NO_BUDGET) else ("worker_lost", told)

    def _told(self) -> str | None:
        try:
            return Path(self._loss).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None


def _environment(job: Mapping[str, Any]) -> Environment | None:
    """The one that the job names, else the one in use; None where nothing is prepared. Raises ForebayError where it is not there."""
    named = job.get("environment")
    if named is None:
        return in_use()
    chosen = environment(str(named))
    return chosen if chosen.exists else None


def _command(job: Mapping[str, Any], python: str, root: Path) -> list[str]:
    """With that Python; a notebook's kernel brings its own, that of the environment that the job names, else the notebook's.

    Nothing that lies in the program's folder is imported before the program itself is.
    """
    ours = [python, "-P", "-m"]
    if job["kind"] == "notebook":
        files = [str(root / str(job["file"])), str(root / output_of(job))]
        named = job.get("environment")
        kernel = [] if named is None else [environment(str(named)).kernel]
        return [sys.executable, *ours[1:], "forebay.toolkit.jobs.notebook", *files, *kernel]
    program = str(job["file"]) if job["kind"] == "module" else _path(str(job["file"]), root)
    return [*ours, "forebay", "run", *(["-m"] if job["kind"] == "module" else []), program, *map(str, job["arguments"])]


def _path(file: str, root: Path) -> str:
    """A script's path; a command on PATH, such as torchrun, is named by its name alone."""
    script = root / file
    return str(script) if script.exists() or os.sep in file else file


def _told(job: Mapping[str, Any]) -> dict[str, str]:
    """What the program knows of its job."""
    flavor = {FLAVOR_VARIABLE: str(job["flavor"])} if job["flavor"] else {}
    numbers = {JOB_VARIABLE: str(job["id"]), ATTEMPT_VARIABLE: str(job["attempt"])}
    return {LABEL_VARIABLE: str(job["label"]), "PYTHONUNBUFFERED": "1", **numbers, **flavor}
