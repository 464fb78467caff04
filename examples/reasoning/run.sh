#!/usr/bin/env bash
# Trains by recipe: run.sh RECIPE [key=value ...]
set -euo pipefail
exec python "$(dirname "${BASH_SOURCE[0]}")/main_grpo.py" --config-name "${1:?usage: run.sh RECIPE [key=value ...]}" "${@:2}"
