# What the scripts for a GPU share; PYTHON and OUT are set by those who read this.

run() {  # run NAME LIMIT ARGUMENT...: rows and tables on the screen, everything in OUT/NAME.log
  local name=$1 limit=$2 begin=$SECONDS; shift 2
  echo "== $name"
  timeout $((limit + 30)) "$PYTHON" -m benchmarks.gpu_reasoning --out "$OUT" --limit "$limit" "$@" 2>&1 \
    | tee "$OUT/$name.log" | grep --line-buffered -E '^(\{|\||[a-z_0-9]+: [0-9]+ s|FAILED|the engine cannot)'
  grep -E '(Error|error|Traceback)' "$OUT/$name.log" | tail -8 | cut -c1-300
  echo "== $name took $((SECONDS - begin)) s"
}
