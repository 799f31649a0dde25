"""Stands in for a container engine, as the program ``docker`` or ``podman`` on PATH.

It writes down what it is told, and runs the command as an engine would as far as that matters to what is mounted: in mount namespaces
with those folders alone under ``/mnt``, with no variable of who called it, and with the programs of an environment that plays the image.
``STAND_IN`` names a folder with ``image``, that environment, and takes ``told.json``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

CONTAINED = """
mount -t tmpfs tmpfs /mnt
while [ "$1" != -- ]; do
    mkdir -p "$2"
    mount --bind "$1" "$2"
    if [ "$3" = ro ]; then mount -o remount,bind,ro "$2"; fi
    shift 3
done
shift
cd "$1"
shift
exec "$@"
"""


def main(words: list[str]) -> int:
    folder = Path(os.environ["STAND_IN"])
    (folder / "told.json").write_text(json.dumps(words))
    options = list(takewhile(lambda word: word.startswith("--"), words[1:]))
    value = {name: text for name, _, text in (option.partition("=") for option in options)}
    volumes = [option.removeprefix("--volume=").split(":") for option in options if option.startswith("--volume=")]
    image, *command = words[1 + len(options) :]
    if image != "stock":
        sys.stderr.write(f"no image {image}\n")
        return 125
    mounts = [part for volume in volumes for part in (*volume, "rw")[:3]]
    path = f"{folder / 'image' / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
    inside = ["env", "-i", f"PATH={path}", "HOME=/nowhere", value["--entrypoint"], *command]
    apart = ["unshare", "--mount", "sh", "-euc", CONTAINED, "sh", *mounts, "--", value["--workdir"]]
    return subprocess.run([*apart, *inside], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
