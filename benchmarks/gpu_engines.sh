#!/usr/bin/env bash
# Checks and times generation engines on one GPU, most important first; what fails does not stop the rest.
#   benchmarks/gpu_engines.sh PYTHON OUT [PART...]     PYTHON has vLLM and what this project needs
# Parts: checks (4 min), table05 (4), grpo (4), table15 (3), table7 (4), lora (3); all of them by default.
# The first start of vLLM compiles kernels for two minutes; $HOME/.cache keeps them.
set -uo pipefail
python=${1:?usage: gpu_engines.sh PYTHON OUT [PART...]}; out=${2:?usage: gpu_engines.sh PYTHON OUT [PART...]}; shift 2
parts=("$@"); [ ${#parts[@]} -gt 0 ] || parts=(checks table05 grpo table15 table7 lora)
mkdir -p "$out"
export VLLM_LOGGING_LEVEL=${VLLM_LOGGING_LEVEL:-WARNING} VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1

PYTHON=$python OUT=$out
. "$(dirname "$0")/gpu_run.sh"

for part in "${parts[@]}"; do
  case $part in
    checks)  run checks 330 --parts vllm --sizes 0.5B ;;
    table05) run table05 330 --parts engines --sizes 0.5B --seconds 240 ;;
    grpo)    run grpo 400 --parts vllm_grpo --sizes 0.5B ;;
    table15) run table15 300 --parts engines --sizes 1.5B --seconds 210 ;;
    table7)  run table7 360 --parts engines --sizes 7B --seconds 270 ;;
    lora)    run lora 270 --parts vllm_lora --sizes 0.5B ;;
    *) echo "no part '$part': checks, table05, grpo, table15, table7, lora" ;;
  esac
done
