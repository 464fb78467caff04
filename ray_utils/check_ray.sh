#!/usr/bin/env bash
# Waits until a Ray cluster is complete: run it on any node before the program.
#
#   ray_utils/check_ray.sh 16              # until there are 16 accelerators
#   ray_utils/check_ray.sh --nodes 2       # until there are 2 nodes, with or without accelerators
#
# Exit code 1 if they are not there in time (--timeout, 360 s). See docs/clusters.md.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="$(command -v python3 || command -v python)" || {
  echo "check_ray.sh: there is no python3 on PATH. Activate the environment that RLinf is in." >&2
  exit 1
}
# shellcheck source=ray_utils/ray_token.sh
source "$here/ray_token.sh"
# Ray does not use a token by itself when it is given an address.
if [[ -z ${RAY_AUTH_MODE:-} ]] && has_token; then export RAY_AUTH_MODE=token; fi
exec "$python" "$here/wait_for_ray.py" "$@"
