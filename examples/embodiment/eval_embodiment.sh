#!/usr/bin/env bash
# Evaluates without training: eval_embodiment.sh CHECKPOINT|RUN|RECIPE [key=value ...]
# A checkpoint brings its own config; the weights of a recipe come from runner.resume_dir=CHECKPOINT
# or from actor.model.model_path=FILE.
set -euo pipefail
: "${1:?usage: eval_embodiment.sh CHECKPOINT|RUN|RECIPE [key=value ...]}"
exec python -m rlinf.cli eval "$@"
