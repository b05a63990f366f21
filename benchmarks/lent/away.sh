#!/usr/bin/env bash
# Runs that outlive the command that starts them, on a lent machine where a command may take minutes and a fresh copy of
# the tree comes with each.
#
#   away.sh begin PLAN JOBS [COMMAND...]   copy the tree and the data that came along; then, in the background, COMMAND and,
#                                          if it went well, errands.py PLAN, so many runs at once
#   away.sh look SECONDS OUT               show how all is going for so long; then what has ended into OUT/runs.tar.xz
#   away.sh stop SECONDS OUT               the same, and end everything first, with checkpoints
#
# Everything is in $AWAY, ~/away if not set: tree/, data/, results/ (all plans), NAME.log of each plan.
set -eu
home=${AWAY:-$HOME/away}
export PYTHONPATH=$home/wheels:$home/tree/src FEDSADDLE_DATA=$home/data FEDSADDLE_CACHE=$home/cache OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1 CUDA_MPS_PIPE_DIRECTORY=$home/mps CUDA_MPS_LOG_DIRECTORY=$home/mps

fedsaddle() { python -m fedsaddle "$@"; }  # nothing is installed there
export -f fedsaddle

begin() {
  local plan=$1 jobs=$2 name
  shift 2
  name=$(basename "$plan" .json)
  mkdir -p "$home"/{data,wheels,results,mps,cache}
  if [ ! -d "$home/tree" ]; then
    mkdir "$home/tree" && cp -r src benchmarks pyproject.toml "$home/tree"
    command -v nvidia-cuda-mps-control > /dev/null && nvidia-cuda-mps-control -d  # kernels of several processes together
    setsid bash "$home/tree/benchmarks/lent/away.sh" tidy > /dev/null 2>&1 < /dev/null &
  fi
  for part in wheels data; do
    if [ -d ".gpu-$part" ]; then cp -r ".gpu-$part/." "$home/$part"; fi
  done
  cp "$plan" "$home/$name.json"
  cd "$home"
  setsid bash -c '"${@:4}" && exec python tree/benchmarks/lent/errands.py "$2" --out results --jobs "$3"' \
    begin "$name" "$home/$name.json" "$jobs" "${@:-true}" > "$home/$name.log" 2>&1 < /dev/null &
  echo $! > "$home/$name.pid"
}

tidy() {  # checkpoints of runs that are complete: a method with a state for each client has gigabytes of them
  while sleep 5; do
    find "$home/results" -name summary.json -execdir rm -rf checkpoints model.safetensors \;
  done
}

look() {
  local until=$((SECONDS + $1)) out=$2
  while [ $SECONDS -lt $until ]; do
    sleep $((until - SECONDS < 30 ? until - SECONDS : 30))
    for log in "$home"/*.log; do echo "$(basename "$log"): $(grep -c ' s  ' "$log") ended; $(tail -n 1 "$log" | cut -c 1-150)"; done
    if command -v nvidia-smi > /dev/null; then nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader; fi
  done
  find "$home/results" -name records.jsonl -printf '%h ' -exec grep -c '' {} \; | sed "s|$home/results/||"
  mkdir -p "$out"
  tar -cJf "$out/runs.tar.xz" -C "$home" --exclude checkpoints --exclude model.safetensors results
  cp "$home"/*.log "$out"
}

stop() {
  for pid in "$home"/*.pid; do pkill -INT -s "$(cat "$pid")" || true; done
  look "$@"
}

"$@"
