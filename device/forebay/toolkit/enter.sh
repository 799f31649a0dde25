#!/bin/sh
# Runs a command in a container of an image with stock PyTorch, so that its cuda:0 is a virtual device:
#
#   sh /mnt/forebay/client/forebay/toolkit/enter.sh python train.py
#
# The folder of this script's packages is mounted, and beside it `settings`: a file for each variable that is to be set, named as it is,
# so that no command line, no image and no engine knows a token; and ca.crt, if the pool's certificate is of an authority of its own.
set -eu
client=$(cd "$(dirname "$0")/../.." && pwd)
settings=${client%/*}/settings
for file in "$settings"/FOREBAY_*; do
    if [ -f "$file" ]; then export "${file##*/}=$(cat "$file")"; fi
done
if [ -f "$settings/ca.crt" ]; then export SSL_CERT_FILE="$settings/ca.crt"; fi
if [ ! -w "${HOME:-/}" ]; then export HOME=/tmp; fi
export PYTHONPATH="$client${PYTHONPATH:+:$PYTHONPATH}"
python=$(command -v python3 || command -v python) || {
    echo "forebay: The image has no Python on its PATH." >&2
    exit 127
}
"$python" - <<'CHECK'
import importlib.machinery
import pathlib
import sys

import forebay
from forebay_wire import torch_builds

torch = torch_builds.installed_version()
if torch is None:
    sys.exit(f"forebay: The image has no torch for {sys.executable}; take one with stock PyTorch.")
suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
folders = [pathlib.Path(place, torch_builds.folder_of(torch)) for place in forebay.__path__]
if not any(folder.joinpath(f"_C{suffix}").exists() for folder in folders):
    built = sorted(pathlib.Path(forebay.__file__).parent.glob("torch_*/_C.*"))
    sys.exit(
        f"forebay: The image has Python {sys.version_info.major}.{sys.version_info.minor} and torch {torch}, and the client "
        f"is built for {', '.join(f'{file.parent.name} ({file.name})' for file in built) or 'none'}; take an image that fits."
    )
CHECK
exec "$@"
