#!/usr/bin/env bash
# Makes a checkout ready to use: checks the tools, makes .venv, builds the extension. Quick when nothing changed.
set -euo pipefail
. "$(dirname "$0")/common.sh"

scripts/prerequisites.sh
"$(find_python)" scripts/environment.py
scripts/extension.sh
