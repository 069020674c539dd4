# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What ./run and ./test share: missing packages, ggml and libllama, configuring and building.
# Sourced by bash with the variable `tree` set to the source folder. Everything built by kvspan itself goes to
# build/ in the tree; every step is quiet and logged, and on failure shows the end of its log.
# A step that has nothing to do costs milliseconds, so nothing needs to remember what was done.

: "${tree:?the source folder}"

say() { printf '%s\n' "kvspan: $*" >&2; }
fail() { say "$*"; exit 2; }

# Debian package, then how its presence is told on any system: a command, or a <header>.
kvspan_needs() {
  cat <<'LIST'
g++ c++
cmake cmake
ninja-build ninja
python3 python3
xz-utils xz
libfmt-dev <fmt/format.h>
libcli11-dev <CLI/CLI.hpp>
nlohmann-json3-dev <nlohmann/json.hpp>
libedit-dev <histedit.h>
libhiredis-dev <hiredis/hiredis.h>
redis-server redis-server
libssl-dev <openssl/ssl.h>
libeigen3-dev <eigen3/Eigen/Core>
pkgconf pkg-config
libgtest-dev <gtest/gtest.h>
libbenchmark-dev <benchmark/benchmark.h>
LIST
}

# Prints the Debian names of what is missing. One preprocessor run answers for all headers.
missing_packages() {
  local package sign probe=
  while read -r package sign; do
    case $sign in
      '<'*) probe+="#if !__has_include($sign)"$'\n'"missing $package"$'\n#endif\n' ;;
      *) command -v "$sign" >/dev/null || printf '%s\n' "$package" ;;
    esac
  done < <(kvspan_needs)
  if command -v c++ >/dev/null; then
    c++ -std=c++20 -E -P -x c++ - <<<"$probe" | sed -n 's/^missing //p' | tr -d ' '
  else
    kvspan_needs | sed -n 's/ <.*//p'
  fi
  # Debian ships venv apart from python3.
  if command -v python3 >/dev/null; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
  else
    echo python3-venv
  fi
}

ensure_packages() {
  local missing as_root=()
  missing=$(missing_packages | tr '\n' ' ')
  [[ -z ${missing// /} ]] && return
  if ! command -v apt-get >/dev/null; then
    fail "please install what Debian calls: ${missing% }"
  fi
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || fail "please run as root: apt-get install ${missing% }"
    as_root=(sudo)
  fi
  mkdir -p "$tree/build" || fail "cannot write to $tree"
  # shellcheck disable=SC2086  # a list of names
  logged "installing ${missing% } (about a minute)" "$tree/build/packages.log" \
    install_packages "${as_root[@]}" -- $missing
  missing=$(missing_packages | tr '\n' ' ')
  [[ -z ${missing// /} ]] || fail "still missing after apt-get: ${missing% }"
}
install_packages() {
  local as_root=()
  while [[ $1 != -- ]]; do as_root+=("$1"); shift; done
  shift
  local get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  # A list of packages that is recent needs no update.
  "${get[@]}" install -y --no-install-recommends "$@" && return
  "${get[@]}" update && "${get[@]}" install -y --no-install-recommends "$@"
}

# logged WHAT LOG command...: runs quietly; on failure prints the log's end and leaves with 2.
logged() {
  local what=$1 log=$2; shift 2
  say "$what"
  "$@" >"$log" 2>&1 </dev/null && return
  tail -n 30 "$log" >&2
  fail "failed: $what; the whole log is $log"
}

# Sets `dependencies` to the folder of ggml and libllama, building them if they are not there; with `sanitizer` set,
# to those for that sanitizer. --libraries: llama.cpp's server need not be there.
ensure_dependencies() {
  dependencies=$(KVSPAN_SANITIZE=${sanitizer:-} "$tree/scripts/dependencies.sh" "$@") || exit $?
}

# build PRESET WHAT [target...]: configures when needed, then builds what has changed. The target `short` is what the tests
# of a plain ./test need.
build() {
  local preset=$1 what=$2; shift 2
  local folder=$tree/build/$preset prefix=$dependencies/prefix options=()
  mkdir -p "$folder" || fail "cannot write to $tree/build"
  # A compiler cache pays where trees are built again and again; a fast linker always.
  if command -v ccache >/dev/null; then
    options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    # Precompiled headers are known by what they hold, not by when they were written.
    export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_ctime,include_file_mtime
    options+=("-DCMAKE_CXX_FLAGS=${CXXFLAGS:-} -fpch-preprocess")
  fi
  ! command -v mold >/dev/null || options+=("-DCMAKE_EXE_LINKER_FLAGS=${LDFLAGS:-} -fuse-ld=mold")
  local server=OFF
  [[ ! -f $prefix/bin/llama-server ]] || server=ON
  options+=("-DKVSPAN_SERVER=$server")
  local wanted=$tree$'\n'$prefix$'\n'${options[*]}
  if [[ ! -f $folder/build.ninja || $(cat "$folder/configured-for" 2>/dev/null) != "$wanted" ]]; then
    logged "configuring $what" "$folder/configure.log" \
      cmake --fresh -S "$tree" --preset "$preset" "-DKVSPAN_LLAMA_PREFIX=$prefix" -DKVSPAN_ENGINE=ON -DKVSPAN_UNITY=ON "${options[@]}"
    printf '%s\n' "$wanted" >"$folder/configured-for"
  fi
  # shellcheck disable=SC2046  # a list of targets
  [[ ${1:-} != short ]] || set -- $(<"$folder/short_targets")
  # A dry run tells in milliseconds whether there is anything to say.
  if ! ninja -C "$folder" -n "$@" 2>/dev/null | grep -q 'no work to do'; then
    logged "building $what (some minutes the first time)" "$folder/build.log" ninja -C "$folder" "$@"
  fi
}
