#!/usr/bin/env bash
# Trains by recipe: run_embodiment.sh RECIPE [key=value ...]
set -euo pipefail
exec python "$(dirname "${BASH_SOURCE[0]}")/train_embodied_agent.py" --config-name "${1:?usage: run_embodiment.sh RECIPE [key=value ...]}" "${@:2}"
