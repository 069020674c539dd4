#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes one target (tests/fuzz) with libFuzzer, and the address and undefined-behaviour sanitizers.
#     scripts/fuzz.sh --list             the targets
#     scripts/fuzz.sh TARGET SECONDS     fuzzes; goes on with the inputs that earlier runs kept in build/fuzz/corpus
#     scripts/fuzz.sh --all SECONDS      all targets, one after the other, SECONDS each
#     scripts/fuzz.sh --keep TARGET      adds those that reach something new to the repository (tests/fuzz/corpus)
# Each run adds a line to build/fuzz/runs.tsv: when, target, seconds, inputs, edges, features, kept inputs, end. A finding
# ends the run with 1; its input lies in build/fuzz/findings.
set -euo pipefail
tree=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd)
# shellcheck source=scripts/setup.sh
source "$tree/scripts/setup.sh"

export KVSPAN_TEST_ALL=1  # caches of all recipes (tests/method/recipes.h)

usage() { sed -n '4,7s/^# *//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
# name<TAB>what, from where the targets are declared
targets() { sed -nE 's/^extern const Target [a-z_]+\{"([^"]+)", "([^"]+)".*/\1\t\2/p' "$tree"/tests/fuzz/targets/*.cc; }
names() { targets | cut -f1 | paste -sd, | sed 's/,/, /g'; }

ensure_clang() {
  local runtime
  command -v clang++-19 >/dev/null ||
    fail "clang-19 is missing; please install what Debian calls: clang-19 libclang-rt-19-dev"
  runtime=$(clang++-19 -print-resource-dir)/lib/linux/libclang_rt.fuzzer-$(uname -m).a
  [[ -f $runtime ]] || fail "clang-19 has no libFuzzer; please install what Debian calls: libclang-rt-19-dev"
}

# Sets program, kept (inputs of earlier runs), committed (those of the repository) and longest (bytes of an input).
prepare() {
  local target=$1
  targets | cut -f1 | grep -qx -- "$target" || fail "target=$target: there is no such target; supported: $(names)"
  ensure_clang
  ensure_packages
  ensure_dependencies --libraries
  build fuzz "the fuzz target $target" "fuzz_$target"
  program=$tree/build/fuzz/tests/fuzz/fuzz_$target
  kept=$tree/build/fuzz/corpus/$target
  committed=$tree/tests/fuzz/corpus/$target
  mkdir -p "$kept" "$committed" "$tree/build/fuzz/findings"
  longest=$(KVSPAN_FUZZ_SEEDS=$tree/build/fuzz/seeds/$target "$program")
}

run() {
  local target=$1 seconds=$2 log status=0
  [[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "seconds=$seconds: it is no number of seconds; supported: 1 and more"
  prepare "$target"
  log=$tree/build/fuzz/$target.log
  "$program" -max_total_time="$seconds" -max_len="$longest" -timeout=120 -report_slow_units=1 -rss_limit_mb=4096 \
    -malloc_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$tree/build/fuzz/findings/$target-" \
    "$kept" "$committed" "$tree/build/fuzz/seeds/$target" >"$log" 2>&1 || status=$?
  summary "$target" "$log" "$status" | tee -a "$tree/build/fuzz/runs.tsv"
  [[ $status == 0 ]] && return
  tail -n 40 "$log" >&2
  fail_finding "$target" "$log"
}
fail_finding() {
  say "a finding in $1; the whole log is $2, the input $(sed -n 's/.*Test unit written to //p' "$2" | tail -n 1)"
  say "once it is fixed, copy the input to tests/fuzz/corpus/$1, where the tests try it"
  exit 1
}
summary() {
  local target=$1 log=$2 status=$3
  awk -v target="$target" -v status="$status" -v date="$(date -u +%FT%TZ)" '
    / cov: / { for (i = 1; i < NF; ++i) { if ($i == "cov:") cov = $(i + 1); if ($i == "ft:") ft = $(i + 1); if ($i == "corp:") corp = $(i + 1) }
               sub("#", "", $1); runs = $1 }
    /^Done / { runs = $2; seconds = $5 }
    END { printf "%s\t%s\t%s s\t%s inputs\t%s edges\t%s features\t%s kept\t%s\n", date, target, seconds, runs, cov, ft, corp,
                 status == 0 ? "no finding" : "finding" }' "$log"
}

keep() {
  prepare "$1"
  local all=$tree/build/fuzz/merged/$1 seeds=$tree/build/fuzz/seeds/$1 bytes=0 files=0 size file name
  rm -rf "$all"
  mkdir -p "$all"
  # Seeds are made when they are needed; what they reach is not kept again.
  find "$seeds" "$committed" -type f -exec cp -t "$all" {} +
  "$program" -merge=1 -max_len="$longest" "$all" "$kept" >"$tree/build/fuzz/$1.log" 2>&1 ||
    fail "the inputs of $1 cannot be merged; the whole log is $tree/build/fuzz/$1.log"
  # The smallest, up to 40 and 48 KB: the tests run all of them, with every compiler.
  while read -r size file; do
    name=$(basename -- "$file")
    [[ -e $seeds/$name ]] && continue
    bytes=$((bytes + size)) files=$((files + 1))
    ((files <= 40 && bytes <= 49152)) || break
    cp -n -- "$file" "$committed/$name"
  done < <(find "$all" -type f -printf '%s %p\n' | sort -n)
  say "$(find "$committed" -type f | wc -l) inputs in tests/fuzz/corpus/$1"
}

case ${1-} in
  --list) [[ $# == 1 ]] || usage; targets | awk -F '\t' '{ printf "%-16s %s\n", $1, $2 }' ;;
  --all)
    [[ $# == 2 ]] || usage
    status=0
    for target in $(targets | cut -f1); do "$0" "$target" "$2" || status=$?; done
    exit "$status"
    ;;
  --keep) [[ $# == 2 ]] || usage; keep "$2" ;;
  -* | '') usage ;;
  *) [[ $# == 2 ]] || usage; run "$1" "$2" ;;
esac
