"""Servers as child processes of the hub, for people without a system account: a home each, under one folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from jupyterhub.spawner import SimpleLocalProcessSpawner
from traitlets import List, Unicode, default

from forebay_spawner.enclosure import enclosed, gpu_nodes
from forebay_spawner.environment import search_path
from forebay_spawner.mixin import VirtualGpuMixin

SHIMS = Path(__file__).parent / "shims"
"""Stand-ins for the vendors' GPU tools: each says that there is no GPU here, and what to run instead."""


class LocalVirtualGpuSpawner(VirtualGpuMixin, SimpleLocalProcessSpawner):  # type: ignore[misc]  # jupyterhub has no type information
    """Runs every server as the hub's own user: for trying Forebay on one machine, not for people who must not trust each other.

    ``c.JupyterHub.spawner_class = "forebay"``
    """

    cmd: list[str]

    notebook_prefix = Unicode(
        config=True,
        help="""Virtual environment of the notebooks, with jupyterhub, jupyterlab and forebay, and none of Forebay's services.""",
    )

    starter_notebooks = List(
        Unicode(),
        config=True,
        help="""Files put into a home when it is made. What a user has changed or removed since is left alone.""",
    )

    @default("cmd")  # type: ignore[untyped-decorator]  # traitlets is not followed
    def _default_cmd(self) -> list[str]:
        return [f"{self.notebook_prefix}/bin/jupyterhub-singleuser"]

    @default("env_keep")  # type: ignore[untyped-decorator]  # traitlets is not followed
    def _default_env_keep(self) -> list[str]:
        return ["LANG", "LC_ALL", "TZ"]

    async def start(self) -> Any:
        """Makes the home, then starts the server."""
        self._make_home(Path(self.home_dir))
        command = self.cmd
        nodes = gpu_nodes()
        try:
            self.cmd = enclosed(command, nodes) if nodes else command
            return await super().start()
        finally:
            self.cmd = command

    def get_args(self) -> list[str]:
        """Where the hub is root, so are its servers, and Jupyter Server wants to be told that this is meant."""
        return [*super().get_args(), *(["--allow-root"] if os.getuid() == 0 else [])]

    def get_env(self) -> dict[str, str]:
        """As the mixin's; and no GPU tool of the host is on the PATH."""
        path = search_path([str(SHIMS), f"{self.notebook_prefix}/bin"])
        return {**super().get_env(), "PATH": path, "VIRTUAL_ENV": self.notebook_prefix}

    def _make_home(self, home: Path) -> None:
        if home.exists():
            return
        home.parent.mkdir(parents=True, exist_ok=True)
        draft = home.with_name(f".{home.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        for notebook in self.starter_notebooks:
            shutil.copy(notebook, draft)
        draft.rename(home)
