"""The examples of ``docs/users/frameworks.md`` run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import fork_server
import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "users" / "frameworks.md"
EXAMPLES = dict(re.findall(r"^## (.*?)\n+```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("framework", ["transformers", "lightning", "Keras"])
def test_an_example_of_the_documentation_learns_on_the_device(framework: str, tmp_path: Path) -> None:
    program = EXAMPLES[framework] + "\nassert next(model.parameters()).is_cuda or trainer.strategy.root_device.type == 'cuda'\n"
    environment = {**os.environ, "FOREBAY_URL": "local"}
    command = [fork_server.programs(), "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    if framework != "transformers":
        assert float(done.stdout.rsplit(" ", 1)[1]) < 1.0
    else:
        losses = [float(loss) for loss in re.findall(r"'loss': '?([0-9.]+)", done.stdout)]
        assert len(losses) == 3 and losses[-1] < losses[0]
