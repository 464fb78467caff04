#!/usr/bin/env bash
# Starts Ray on this node of a cluster: run it once on every node, with the node's rank.
#
#   RLINF_NODE_RANK=<0..N-1> ray_utils/start_ray.sh [options of `ray start`]
#
# Rank 0 becomes the head; the others wait for it, and join it. See docs/clusters.md.
#
#   RLINF_NODE_RANK or RANK   rank of this node; each is given once, from 0 on
#   RAY_ADDRESS               host:port, or host, of the head; the same on all nodes. Without it
#                             the head writes its address to a file that all nodes see:
#   RLINF_HEAD_FILE           that file (ray_head_ip.txt beside this script)
#   RLINF_HEAD_PORT           port of the head (6379)
#   RLINF_NODE_IP             address of this node; by default that of the first interface in
#   RLINF_COMM_NET_DEVICES    or else the one from which the head is reached
#   RLINF_START_TIMEOUT       seconds until the head must be reached, and Ray be up (360)
#   RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token
#                             Ray's token, the same on all nodes; the head makes one if it has none
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
head_file="${RLINF_HEAD_FILE:-$here/ray_head_ip.txt}"
timeout_seconds="${RLINF_START_TIMEOUT:-360}"
# shellcheck source=ray_utils/ray_token.sh
source "$here/ray_token.sh"

fail() {
  printf 'start_ray.sh: %s\n' "$*" >&2
  exit 1
}

say() { printf 'start_ray.sh: %s\n' "$*" >&2; }

is_number() { [[ $1 =~ ^[0-9]+$ ]]; }

is_port() { is_number "$1" && ((10#$1 >= 1 && 10#$1 <= 65535)); }

# host:port, with [brackets] around an IPv6 address, of a host and a port.
joined() { if [[ $1 == *:* ]]; then echo "[$1]:$2"; else echo "$1:$2"; fi; }

# Splits host:port, or host alone, into `host` and `port`; the port is left empty if there is none.
split_address() {
  host="$1" port=""
  if [[ $1 =~ ^\[(.+)\](:([0-9]+))?$ ]]; then
    host="${BASH_REMATCH[1]}" port="${BASH_REMATCH[3]:-}"
  elif [[ $1 =~ ^([^:]+):([0-9]+)$ ]]; then
    host="${BASH_REMATCH[1]}" port="${BASH_REMATCH[2]}"
  elif [[ $1 == */* || $1 == auto || $1 == local || $1 == *: ]]; then
    return 1
  fi
}

reachable() { timeout 5 bash -c 'exec 3<>"/dev/tcp/$1/$2"' _ "$1" "$2" 2>/dev/null; }

node_ip() {
  if [[ -n ${RLINF_NODE_IP:-} ]]; then
    echo "$RLINF_NODE_IP"
  else
    "$python" "$here/node_ip.py" --interfaces "${RLINF_COMM_NET_DEVICES:-}" "$@"
  fi
}

# -- what was given --------------------------------------------------------------------------------

for argument in "$@"; do
  case "$argument" in
    -h | --help)
      sed -n '2,/^set -e/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    --head | --head=* | --address | --address=* | --port | --port=* | --node-ip-address | \
      --node-ip-address=*)
      fail "${argument%%=*} is set by this script: use RLINF_NODE_RANK, RAY_ADDRESS," \
        "RLINF_HEAD_PORT and RLINF_NODE_IP. Other options are passed on to \`ray start\`."
      ;;
  esac
done

rank="${RLINF_NODE_RANK:-${RANK:-}}"
[[ -n $rank ]] || fail "this node has no rank. Give each node its own, from 0 on:" \
  "RLINF_NODE_RANK=0 $0 on the first, RLINF_NODE_RANK=1 $0 on the second."
is_number "$rank" || fail "RLINF_NODE_RANK is '$rank'. It is a whole number, 0 for the head."
rank=$((10#$rank))
if [[ -n ${RLINF_NODE_RANK:-} && -n ${RANK:-} && $RANK != "$RLINF_NODE_RANK" ]]; then
  say "RANK=$RANK is ignored, since RLINF_NODE_RANK is $RLINF_NODE_RANK"
fi
is_number "$timeout_seconds" && ((10#$timeout_seconds >= 1)) ||
  fail "RLINF_START_TIMEOUT is '$timeout_seconds'. It is a whole number of seconds, at least 1."
deadline=$((SECONDS + 10#$timeout_seconds))
head_port="${RLINF_HEAD_PORT:-6379}"
is_port "$head_port" || fail "RLINF_HEAD_PORT is '$head_port'. It is a port, 1 to 65535."
address="${RAY_ADDRESS:-}"
host="" port=""
if [[ -n $address ]]; then
  split_address "$address" ||
    fail "RAY_ADDRESS is '$address'. It is the head's host:port, or its host; unset it to let the" \
      "head write its address to $head_file."
  if [[ -n $port ]]; then
    is_port "$port" || fail "RAY_ADDRESS is '$address', whose port is none. Ports are 1 to 65535."
    [[ -z ${RLINF_HEAD_PORT:-} || $RLINF_HEAD_PORT == "$port" ]] ||
      fail "RAY_ADDRESS says port $port, RLINF_HEAD_PORT says $RLINF_HEAD_PORT. Unset one of them."
    head_port="$port"
  fi
fi
command -v ray >/dev/null ||
  fail "there is no \`ray\` on PATH. Activate the environment that RLinf is installed in."
python="$(command -v python3 || command -v python)" ||
  fail "there is no python3 on PATH. Activate the environment that RLinf is installed in."

# Ray gives workers the environment that it was started with.
export RLINF_NODE_RANK="$rank"
unset RAY_ADDRESS
if [[ -z ${RAY_AUTH_MODE:-} ]]; then
  export RAY_AUTH_MODE=token
elif [[ ${RAY_AUTH_MODE,,} != token ]]; then
  say "RAY_AUTH_MODE=$RAY_AUTH_MODE: whoever reaches a port of this Ray can run code as you"
fi

# -- where the head is -----------------------------------------------------------------------------

start_head() {
  local ip at
  if [[ -z ${RLINF_NODE_IP:-} && $host =~ ^[0-9.]+$|: ]]; then
    ip="$host"
  else
    ip="$(node_ip)" || exit 1
  fi
  at="$(joined "$ip" "$head_port")"
  if reachable "$ip" "$head_port"; then
    fail "something listens at $at already. If it is a Ray that is not needed any more, end it" \
      "with \`ray stop\`; else choose another RLINF_HEAD_PORT."
  fi
  if [[ ${RAY_AUTH_MODE,,} == token ]] && ! has_token; then
    [[ -z ${RAY_AUTH_TOKEN_PATH:-} ]] ||
      fail "RAY_AUTH_TOKEN_PATH is $RAY_AUTH_TOKEN_PATH, where there is no token. Unset it, or" \
        "put one there."
    (umask 077 && ray get-auth-token --generate >/dev/null 2>&1) && has_token ||
      fail "no token could be made in $HOME/.ray. Set RAY_AUTH_TOKEN to a secret, the same on all" \
        "nodes."
    say "made a token, $HOME/.ray/auth_token; nodes with another home folder need a copy of it"
  fi
  if [[ -z $address ]]; then
    # Written before there is a Ray: others try until somebody answers there.
    { echo "$at" >"$head_file.$$" && mv "$head_file.$$" "$head_file"; } ||
      fail "the address of the head cannot be written to $head_file. Set RLINF_HEAD_FILE to a" \
        "file that all nodes see, or RAY_ADDRESS to the head's host:port on all of them."
  fi
  say "node 0 starts the head at $at; where you start programs: export RAY_ADDRESS=$at"
  ray_start --head "--port=$head_port" "--node-ip-address=$ip" "$@" || {
    if [[ -z $address ]]; then rm -f "$head_file"; fi
    fail "Ray did not start as the head at $at; what it says is above. Its logs are in /tmp/ray."
  }
}

join_head() {
  local ip at="" source="$head_file" told=""
  while true; do
    if [[ -n $address ]]; then
      source=RAY_ADDRESS port="$head_port"
    elif [[ -s $head_file ]]; then
      split_address "$(<"$head_file")" && [[ -n $port ]] ||
        fail "$head_file says '$(<"$head_file")', which is no host:port. Remove it, and start the" \
          "head (rank 0) again."
    else
      host=""
    fi
    at="${host:+$(joined "$host" "$port")}"
    if [[ -n $at ]] && reachable "$host" "$port"; then break; fi
    if ((SECONDS >= deadline)); then
      [[ -n $at ]] ||
        fail "there was no $head_file within $timeout_seconds s (RLINF_START_TIMEOUT). Has rank 0" \
          "been started, and do both nodes see that file? If they share no folder, set" \
          "RAY_ADDRESS to the head's host:port on all nodes."
      fail "nothing answered at $at (of $source) within $timeout_seconds s (RLINF_START_TIMEOUT)." \
        "Has rank 0 been started, and does every firewall let port $port through?"
    fi
    if [[ $told != "at $at" ]]; then
      say "node $rank waits for the head ${at:+at $at, }of $source"
      told="at $at"
    fi
    sleep 1
  done
  [[ ${RAY_AUTH_MODE,,} != token ]] || has_token ||
    fail "this node has no token of Ray's. Copy ~/.ray/auth_token of the head to the same place" \
      "here, or set RAY_AUTH_TOKEN to the same secret on all nodes."
  ip="$(node_ip --toward "$host" "$port")" || exit 1
  say "node $rank ($ip) joins the head at $at"
  ray_start "--address=$at" "--node-ip-address=$ip" "$@" ||
    fail "Ray did not start on this node ($ip) with the head at $at. If what it says above is" \
      "about authentication, this node has another token than the head: give it the same" \
      "~/.ray/auth_token or RAY_AUTH_TOKEN. If a Ray runs here already, end it with \`ray stop\`."
}

# `ray start` within the time that is left. With --block it stays, and signals are for it.
ray_start() {
  local left=$((deadline - SECONDS))
  if [[ " $* " == *" --block "* ]]; then exec ray start "$@" --disable-usage-stats; fi
  # --foreground: Ray's processes are not ended with it.
  timeout --foreground --kill-after=10 "$((left > 30 ? left : 30))" \
    ray start "$@" --disable-usage-stats
}

if ((rank == 0)); then start_head "$@"; else join_head "$@"; fi
