#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the CUDA code on a machine that has a GPU, runs its tests, the sanitizers on a short selection
# and the benchmark, and writes RESULT.json with driver, clocks and commit:
#     scripts/gpu_test.sh COMMIT RESULT.json [BUILD_FOLDER]
# KVSPAN_GPU_ONLY: cases of the benchmark whose name has one of these words, with | between them (default: all).
# KVSPAN_GPU_STEPS: some of "test memcheck racecheck bench" (default: all).
# KVSPAN_GPU_BUILT=yes: BUILD_FOLDER holds what is run, made elsewhere; nothing is built.
set -euo pipefail
commit=${1:?commit}; result=$(realpath -m "${2:?result file}"); build=${3:-build/gpu}
steps=${KVSPAN_GPU_STEPS:-test memcheck racecheck bench}
source=$(cd "$(dirname "$0")/.." && pwd)
logs=$(dirname "$result"); mkdir -p "$logs"
has() { [[ " $steps " == *" $1 "* ]]; }
outcome() { [ "$1" -eq 0 ] && echo passed || echo failed; }

if [ "${KVSPAN_GPU_BUILT:-}" != yes ]; then
  cmake -G Ninja -S "$source" -B "$build" -DCMAKE_BUILD_TYPE=Release -DKVSPAN_ENGINE=OFF -DKVSPAN_BENCH=OFF \
    -DKVSPAN_CUDA=ON ${KVSPAN_GPU_CMAKE:-} > "$logs/configure.log"
  ninja -C "$build" cuda_tests kvspan_cuda_bench > "$logs/build.log" 2>&1 || { tail -40 "$logs/build.log"; exit 1; }
fi
tests=$build/tests/cuda/cuda_tests module=$(realpath "$build/bench/cuda/kvspan_cuda_bench.so")
short='DeviceSequences.AFork*:DeviceSequences.Truncated*:DeviceSequences.Rows*:RecordedStep.Steps*'
declare -A outcomes jobs
if has bench; then
  status=0
  timeout "${KVSPAN_GPU_BENCH_S:-900}" python3 "$source/bench/cuda/attention.py" "$module" --json "$logs/attention.json" --only "${KVSPAN_GPU_ONLY:-}" 2> "$logs/bench.err" \
    | tee "$logs/bench.log" || status=$?
  outcomes[bench]=$(outcome $status); tail -3 "$logs/bench.err"
  python3 "$source/bench/cuda/eigen.py" "$module" --json "$logs/eigen.json"
fi
# Tests wait for the host most of the time, so that they, in parts, and the sanitizers can run side by side.
start() { local name=$1; shift; "$@" > "$logs/$name.log" 2>&1 & jobs[$name]=$!; }
if has test; then
  for shard in 0 1 2 3; do start tests$shard env GTEST_TOTAL_SHARDS=4 GTEST_SHARD_INDEX=$shard "$tests"; done
fi
for tool in memcheck racecheck; do
  if has $tool; then
    start $tool timeout "${KVSPAN_GPU_SANITIZER_S:-300}" compute-sanitizer --tool $tool --error-exitcode 9 "$tests" --gtest_filter="$short"
  fi
done
for name in "${!jobs[@]}"; do
  status=0; wait "${jobs[$name]}" || status=$?
  outcomes[$name]=$(outcome $status)
done
# racecheck takes warps that have passed named barriers unequally often for unordered, a block's barrier or not:
# what it says of attend_bands alone counts only if it does not say the same of a program that has no race.
if has racecheck && [ "${outcomes[racecheck]}" = failed ]; then
  nvcc -arch=sm_90 -o "$build/named_barriers" "$source/tests/cuda/named_barriers.cu"
  hazards() { compute-sanitizer --tool racecheck "$build/named_barriers" "$@" 2>&1 | grep -oE "SUMMARY: [0-9]+" | grep -oE "[0-9]+"; }
  unequal=$(hazards || echo 0) equal=$(hazards equal || echo 1)
  others=$(grep "Race reported" "$logs/racecheck.log" | grep -vc attend_bands_kernel || true)
  echo "racecheck: $others reports outside attend_bands; of a program without a race $unequal, with equally many barriers $equal"
  if [ "$unequal" -gt 0 ] && [ "$equal" -eq 0 ] && [ "$others" -eq 0 ] && grep -q "PASSED" "$logs/racecheck.log"; then
    outcomes[racecheck]=named_barriers_only
  fi
fi
grep -hE "worst|FAILED|PASSED|Failure|ERROR SUMMARY|RACECHECK SUMMARY" "$logs"/{tests?,memcheck,racecheck}.log 2> /dev/null | tail -60 || true
PYTHONPATH=$source/scripts python3 - "$commit" "$result" "$logs/attention.json" "$logs/eigen.json" "$(declare -p outcomes)" <<'PYTHON'
import json, os, re, subprocess, sys
commit, result, rows, eigen, outcomes = sys.argv[1:]
from gpu_machine import gpu
nvcc = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout.strip().splitlines()[-1]
json.dump({"commit": commit, "gpu": gpu(), "nvcc": nvcc,
           "outcomes": dict(re.findall(r"\[(\w+)\]=\"(\w+)\"", outcomes)), "command": "scripts/gpu_test.sh COMMIT RESULT.json",
           "eigen": json.load(open(eigen)) if os.path.exists(eigen) else {},
           "attention": json.load(open(rows)) if os.path.exists(rows) else []}, open(result, "w"), indent=1)
PYTHON
echo "outcomes: ${!outcomes[*]} = ${outcomes[*]}"
[[ " ${outcomes[*]} " != *failed* ]]
