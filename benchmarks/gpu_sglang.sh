#!/usr/bin/env bash
# Checks SGLang as an engine on one GPU: start, log-probabilities, weights in place, abort, sleep; then GRPO in workers,
# and with a server.
#   benchmarks/gpu_sglang.sh pack PACK OUT       here: wheels for a machine without a network, in OUT/part1, part2, ...
#   benchmarks/gpu_sglang.sh run PYTHON OUT [PART...]    there: PYTHON has SGLang and what this project needs
# PACK is the script that packs what a machine lacks: `PACK OUT REQUIREMENT...`, with SKIP='name name' left out.
# SGLang pins an older transformers than this project asks for and that machine has, so it gets an environment of its
# own, with that transformers in it. Parts: checks (5 min), grpo (5), url (4: GRPO with a server of SGLang by its URL);
# all by default. What fails does not stop the rest.
set -uo pipefail
usage="usage: gpu_sglang.sh pack PACK OUT, or gpu_sglang.sh run PYTHON OUT [PART...]"
mode=${1:?$usage}; tool=${2:?$usage}; out=${3:?$usage}; shift 3
version=${SGLANG:-0.5.13} transformers=${TRANSFORMERS:-5.8.1} tokenizers=${TOKENIZERS:-0.22.2} hub=${HUB:-1.33.0}

if [ "$mode" = pack ]; then
  # The project's own needs, and SGLang's; compiled FlashInfer kernels are made there when they are first used.
  bash "$tool" "$out" || exit 1
  SKIP="flashinfer-cubin ray ${SKIP:-}" bash "$tool" "$out/sglang" "sglang==$version" || exit 1
  mkdir -p "$out/pinned/wheels"
  python3 -m pip download -q --no-deps -d "$out/pinned/wheels" --python-version 312 --only-binary=:all: \
    --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
    "transformers==$transformers" "tokenizers==$tokenizers" "huggingface_hub==$hub" || exit 1
  tar -C "$out/pinned/wheels" -cf "$out/pinned/pinned.tar.zz" . && rm -r "$out/pinned/wheels"
  echo "copy all *.tar.* files of one set into a folder of its own, join each, and install all wheels without"
  echo "dependencies into one environment, those of pinned last; then: gpu_sglang.sh run PYTHON OUT"
  exit 0
fi
[ "$mode" = run ] || { echo "$usage"; exit 2; }
parts=("$@"); [ ${#parts[@]} -gt 0 ] || parts=(checks grpo url)
mkdir -p "$out"
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK=1

PYTHON=$tool OUT=$out
. "$(dirname "$0")/gpu_run.sh"

for part in "${parts[@]}"; do
  case $part in
    checks) run sglang 400 --parts sglang --sizes 0.5B ;;
    grpo)   run sglang_grpo 400 --parts sglang_grpo --sizes 0.5B ;;
    url)    run sglang_url 400 --parts sglang_url --sizes 0.5B ;;
    *) echo "no part '$part': checks, grpo, url" ;;
  esac
done
