"""Servers as child processes of the hub, for people without a system account: a home each, under one folder."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from forebay_service.account import Account
from forebay_service.people.names import slug_of
from jupyterhub.spawner import SimpleLocalProcessSpawner
from traitlets import Callable, List, Unicode, default

from forebay_spawner.enclosure import enclosed, gpu_nodes
from forebay_spawner.environment import search_path
from forebay_spawner.mixin import ENVIRONMENTS, JOB_RUNNER, VirtualGpuMixin

SHIMS = Path(__file__).parent / "shims"
"""Stand-ins for the vendors' GPU tools: each says that there is no GPU here, and what to run instead."""


class LocalVirtualGpuSpawner(VirtualGpuMixin, SimpleLocalProcessSpawner):  # type: ignore[misc]  # jupyterhub has no type information
    """Runs each server under the account that ``account_of`` names for its user. Without accounts all run as the hub's own user:
    for one person, or for trying Forebay, not for people who must not trust each other.

    ``c.JupyterHub.spawner_class = "forebay"``
    """

    cmd: list[str]
    home_dir_template: str
    popen_kwargs: dict[str, Any]

    notebook_prefix = Unicode(
        config=True,
        help="""Virtual environment of the notebooks, with jupyterhub, jupyterlab and forebay, and none of Forebay's services.""",
    )

    starter_notebooks = List(
        Unicode(),
        config=True,
        help="""Files put into a home when it is made. What a user has changed or removed since is left alone.""",
    )

    account_of = Callable(
        None,
        allow_none=True,
        config=True,
        help="""Called with a user's name: the account (forebay_service.account) of that user's servers and home. Needs a hub that is root.

        None: servers run as the hub's own user, so that each of them can read what the hub and the others can.
        """,
    )

    log_file_template = Unicode(
        config=True,
        help="""File that takes what a server prints, begun anew at each start; {username} is the user's, as the home
        is called, with @jobs behind it for the runner of a job. Empty: the hub's own log.

        A server may write to its log whatever it likes, and cut it short.
        """,
    )

    @default("home_dir")  # type: ignore[untyped-decorator]  # traitlets is not followed
    def _default_home_dir(self) -> str:
        """A login like an e-mail address has a folder that every program takes."""
        return str(self.home_dir_template.format(username=slug_of(self.user.name)))

    @default("cmd")  # type: ignore[untyped-decorator]  # traitlets is not followed
    def _default_cmd(self) -> list[str]:
        return [f"{self.notebook_prefix}/bin/python", *ENVIRONMENTS, f"{self.notebook_prefix}/bin/jupyterhub-singleuser"]

    @default("job_cmd")  # type: ignore[untyped-decorator]  # traitlets is not followed
    def _default_job_cmd(self) -> list[str]:
        python = f"{self.notebook_prefix}/bin/python"
        return [python, *ENVIRONMENTS, python, *JOB_RUNNER]

    @default("env_keep")  # type: ignore[untyped-decorator]  # traitlets is not followed
    def _default_env_keep(self) -> list[str]:
        return ["LANG", "LC_ALL", "TZ"]

    async def start(self) -> Any:
        """Makes the home, then starts the server."""
        account: Account | None = self.account_of(self.user.name) if self.account_of else None
        self._make_home(Path(self.home_dir), account)
        command, options = self.cmd, self.popen_kwargs
        program = self.job_cmd if self.name else command
        nodes = gpu_nodes()
        with ExitStack() as files:
            files.callback(setattr, self, "cmd", command)
            files.callback(setattr, self, "popen_kwargs", options)
            inner = account.command(program) if account else program
            self.cmd = enclosed(inner, nodes) if nodes else inner
            if self.log_file_template:
                slug = slug_of(self.user.name)
                whose = f"{slug}@jobs" if self.name else slug
                log = files.enter_context(_begin(Path(self.log_file_template.format(username=whose))))
                self.popen_kwargs = {**options, "stdout": log, "stderr": log}
            return await super().start()

    def get_args(self) -> list[str]:
        """Kernels encrypt what they say to their server: anybody on this machine may connect to their ports.

        Where servers are root, as the hub is, Jupyter Server wants to be told that this is meant.
        """
        if self.name:
            return []
        root = os.getuid() == 0 and self.account_of is None
        return [*super().get_args(), "--KernelManager.transport_encryption=auto", *(["--allow-root"] if root else [])]

    def get_env(self) -> dict[str, str]:
        """As the mixin's; and no GPU tool of the host is on the PATH."""
        path = search_path([str(SHIMS), f"{self.notebook_prefix}/bin"])
        return {**super().get_env(), "PATH": path, "VIRTUAL_ENV": self.notebook_prefix}

    def _make_home(self, home: Path, account: Account | None) -> None:
        if home.exists():
            return
        home.parent.mkdir(parents=True, exist_ok=True)
        draft = home.with_name(f".{home.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        for notebook in self.starter_notebooks:
            shutil.copy(notebook, draft)
        if account is not None:
            for path in (draft, *draft.iterdir()):
                os.chown(path, account.gid, account.gid)
        draft.rename(home)


def _begin(log: Path) -> BinaryIO:
    """An empty log, for this account alone to read."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    return open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
