#!/usr/bin/env bash
# From a fresh clone to proof, in one command: installs what is missing, builds the `flashlane` program and lets it
# compute two layers of a real sentence encoder on every instruction set that this machine has. The table shows, for
# each, the error against the exact (f64) answers and the speed with all threads (FLASHLANE_NUM_THREADS=1: of one).
# Can be run from anywhere; a second run takes seconds.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

cmake/bootstrap.sh
printf 'quickstart: configuring\n'
if ! cmake --preset release >build/quickstart.log 2>&1; then
  cat build/quickstart.log >&2
  exit 1
fi
printf 'quickstart: building (the kernels are compiled once per instruction set: minutes, the first time)\n'
cmake --build --preset release --target flashlane_cli flashlane # the program, and the library to install
build/release/bin/flashlane verify tests/data/minilm --time
