#!/usr/bin/env bash
# Pins every requirement but excluded.txt. Torch is left out with all that a build of it needs, because its CPU build is installed
# first and apart: the override asks for it on a Python that does not exist.
set -eu
cd "$(dirname "$0")"
lock() { uv pip compile -q "$1.in" -o "$1.txt" --overrides <(echo "torch ; python_version < '3'") --excludes excluded.txt --no-emit-index-url --no-header --no-annotate --python-version 3.11 "${@:2}"; }
lock dev
lock server -c dev.txt
lock notebook -c dev.txt
lock release -c dev.txt
lock helm --no-deps
lock grafana # apart: its urllib3 takes the place of the other one
