"""``python -I -m forebay.toolkit.environments [COMMAND …]``: what a notebook server and its terminals begin with.

With a command: becomes it, with the user's environments up to date and shown to Jupyter. Without: a shell in the environment in use.
"""

from __future__ import annotations

import os
import shutil
import sys

from forebay import monitors
from forebay.toolkit.environments import environment

SHOWN = ("JUPYTER_PATH", "JUPYTER_CONFIG_PATH")
"""Where Jupyter looks first for kernels and settings; an operator's own folders come after."""

if __name__ == "__main__":
    command, variables = sys.argv[1:], dict(os.environ)
    monitors.offer(variables)
    if command:
        try:
            folder = str(environment.prepare())
            variables |= {name: os.pathsep.join(filter(None, [folder, variables.get(name)])) for name in SHOWN}
        except (OSError, ValueError) as error:
            sys.stderr.write(f"forebay: Your environments cannot be used, and kernels have the shared packages alone: {error}\n")
    else:
        used = environment.in_use()
        variables = variables if used is None else used.activated(variables)
        command = [os.environ.get("SHELL") or shutil.which("bash") or "/bin/sh"]
    os.execvpe(command[0], command, variables)  # noqa: S606 - becoming the command is the purpose
