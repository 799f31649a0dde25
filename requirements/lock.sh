#!/usr/bin/env bash
# Pins every requirement; torch is left out, because its CPU build is installed first and apart.
set -eu
cd "$(dirname "$0")"
lock() { uv pip compile -q "$1.in" -o "$1.txt" --no-emit-package torch --no-emit-index-url --no-header --no-annotate --python-version 3.11 "${@:2}"; }
lock dev
lock server -c dev.txt
lock notebook -c dev.txt
