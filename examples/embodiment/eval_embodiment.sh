#!/usr/bin/env bash
# Evaluates by recipe, without training: eval_embodiment.sh RECIPE [key=value ...]
# Weights come from actor.model.model_path=FILE.
set -euo pipefail
exec python "$(dirname "${BASH_SOURCE[0]}")/train_embodied_agent.py" --config-name "${1:?usage: eval_embodiment.sh RECIPE [key=value ...]}" ++runner.only_eval=true "${@:2}"
