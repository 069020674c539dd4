#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds ggml, libllama and its common library (samplers, grammars, chat templates) once, from one pinned source archive,
# into the user's cache folder; on demand also the archive's server and its generator of tiny models of every architecture:
#     ${XDG_CACHE_HOME:-~/.cache}/kvspan/deps/llama-cpp-python-VERSION-KEY/
#         prefix/   headers, static libraries; with the server also its libraries, bin/llama-server (stock, to compare with)
#                   and bin/test-llama-archs
#         src/      the sources they were built from, with the Hugging Face converter and the server's tests
#         build/    until the server is built: object files
# KEY stands for the build flags, the compiler and the processor, because ggml is built for the processor it runs on.
# src/ and prefix/ each appear in one rename when they are complete, bin/llama-server last: two concurrent calls build
# once, an interrupted or failed build resumes where it stopped, and a call that finds what it needs returns at once.
#
#     scripts/dependencies.sh               build all that is missing, print the folder
#     scripts/dependencies.sh --libraries   the same without the server and the generator
#     scripts/dependencies.sh --path        print the folder, build nothing
# KVSPAN_CUDA=ON builds ggml's CUDA backend too (nvcc; a GPU only to run it), for KVSPAN_CUDA_ARCHITECTURES as
# CMAKE_CUDA_ARCHITECTURES takes them (default: 90-real, Hopper), into a folder of its own.
# KVSPAN_SANITIZE=thread builds all for the thread sanitizer, into a folder of its own.
# Needs: a C++ compiler, cmake, ninja, python3 with venv. Exit 2: something is missing or did not download.
set -euo pipefail

version=0.3.36
archive=llama_cpp_python-$version.tar.gz
archive_sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
flags=(
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF
  -DCMAKE_INSTALL_LIBDIR=lib
  -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_TOOLS_INSTALL=OFF -DLLAMA_BUILD_TESTS=ON
  -DLLAMA_TESTS_INSTALL=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_UI=OFF
  -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=ON
  -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF
)
# GCC's _tile_loadconfig (seen in 12) tells of the first 8 of the 64 bytes that it reads, so the stores of ggml's other
# 56 are taken for dead, and the first product of a processor with AMX is an illegal instruction.
[[ $(uname -m) != x86_64 ]] || flags+=("-DCMAKE_CXX_FLAGS=${CXXFLAGS:-} -fno-tree-dse -fno-dse")
case ${KVSPAN_SANITIZE:-} in
  '') ;;
  thread)
    flags+=(-DGGML_SANITIZE_THREAD=ON -DLLAMA_SANITIZE_THREAD=ON "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -g1 -DNDEBUG"
      "-DCMAKE_C_FLAGS_RELEASE=-O1 -g1 -DNDEBUG") ;;
  *) printf '%s\n' "kvspan: KVSPAN_SANITIZE=$KVSPAN_SANITIZE; supported: thread" >&2; exit 2 ;;
esac
case ${KVSPAN_CUDA:-OFF} in
  ON) flags+=(-DGGML_CUDA=ON "-DCMAKE_CUDA_ARCHITECTURES=${KVSPAN_CUDA_ARCHITECTURES:-90-real}" -DGGML_CUDA_NCCL=OFF) ;;
  OFF) ;;
  *) printf '%s\n' "kvspan: KVSPAN_CUDA=$KVSPAN_CUDA (allowed: ON, OFF)" >&2; exit 2 ;;
esac
# How cold parts are compiled, as a file for the archive's own project.
archive_flags=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../cmake" && pwd)/ArchiveFlags.cmake
# What is unpacked: the libraries, the server among the tools, the tests that the generator is one of, and the
# converter (with the chat templates it reads).
members=(CMakeLists.txt AUTHORS LICENSE licenses cmake common ggml include src tests tools vendor
  scripts/ui-assets.cmake convert_hf_to_gguf.py conversion gguf-py models/templates)

say() { printf '%s\n' "kvspan: $*" >&2; }
fail() { say "$*"; exit 2; }

cpu_features() {
  sed -n -E 's/^(Features|flags)[[:space:]]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1 || true
}
cxx=${CXX:-c++}
cxx=${cxx%% *}
compiler_version() { "$cxx" --version 2>/dev/null | head -n 1 || true; }
key=$(printf '%s\n' "${flags[@]}" "${members[@]}" "$(cat "$archive_flags")" "$archive_sha256" "$(uname -m)" "$(cpu_features)" \
  "$(compiler_version)" | sha256sum | cut -c 1-12)
cache=${XDG_CACHE_HOME:-}
[[ $cache == /* ]] || cache=${HOME:?neither XDG_CACHE_HOME nor HOME is set}/.cache
root=$cache/kvspan/deps
final=$root/llama-cpp-python-$version-$key

last=prefix/bin/llama-server  # exists once everything has been built
case ${1:-} in
  --path) printf '%s\n' "$final"; exit 0 ;;
  --libraries) last=prefix/lib/libllama.a ;;
  '') ;;
  *) fail "dependencies.sh: unknown argument '$1'; supported: --libraries, --path" ;;
esac
end_if_complete() {
  [[ -f $final/$last ]] || return 0
  printf '%s\n' "$final"
  exit 0
}
end_if_complete

tools=("$cxx" cmake ninja python3 tar sha256sum flock)
[[ ${KVSPAN_CUDA:-OFF} != ON ]] || tools+=("${CUDACXX:-nvcc}")
for tool in "${tools[@]}"; do
  command -v "$tool" >/dev/null || fail "cannot build ggml: '$tool' is missing"
done
mkdir -p "$root" || fail "cannot create $root"
exec 9>"$root/.lock"
flock -n 9 || { say "another kvspan build is making the dependencies; waiting for it"; flock 9; }
end_if_complete

# Holding the lock, whatever is named .unpacking belongs to a call that was killed.
rm -rf "$root"/.unpacking-*
log=$root/build.log
work=
trap '[[ -z $work ]] || rm -rf "$work"' EXIT
trap 'say "interrupted; the next call resumes the build"; exit 130' INT TERM HUP
: >"$log"
step() {  # step "what" command...: runs quietly into the log; on failure shows its end
  local what=$1; shift
  say "$what"
  "$@" >>"$log" 2>&1 9>&- && return
  tail -n 25 "$log" >&2
  fail "failed: $what; the whole log is $log"
}

free_kib=$(df -Pk "$root" | awk 'NR == 2 {print $4}')
((free_kib > 1200 * 1024)) || fail "$root has $((free_kib / 1024)) MiB free; building ggml and libllama needs 1200 MiB"

if [[ ! -d $final/src ]]; then
  work=$(mktemp -d "$root/.unpacking-XXXXXX")
  step "preparing pip" python3 -m venv "$work/venv"
  step "downloading $archive (76.6 MB)" "$work/venv/bin/python" -m pip download \
    --disable-pip-version-check --no-cache-dir --no-deps --no-binary llama-cpp-python \
    --dest "$work" "llama-cpp-python==$version"
  found=$(sha256sum "$work/$archive" | cut -d ' ' -f 1)
  [[ $found == "$archive_sha256" ]] ||
    fail "$archive has SHA-256 $found, expected $archive_sha256; nothing was unpacked"
  mkdir -p "$work/src" "$final"
  step "unpacking" tar -xzf "$work/$archive" -C "$work/src" --strip-components=3 \
    "${members[@]/#/llama_cpp_python-$version/vendor/llama.cpp/}"
  mv "$work/src" "$final/src"
  rm -rf "$work"
fi

jobs=$(nproc 2>/dev/null || echo 2)
# The ceiling keeps the version stamp from reading a git repository around the cache folder.
export GIT_CEILING_DIRECTORIES=$root
configure() {
  cmake -G Ninja -S "$final/src" -B "$final/build" "${flags[@]}" "-DCMAKE_PROJECT_INCLUDE=$archive_flags"
}
# compile WHAT TARGET...
compile() {
  local what=$1; shift
  [[ -f $final/build/build.ninja ]] || step "configuring ggml and libllama" configure
  step "building $what with $jobs jobs" cmake --build "$final/build" --parallel "$jobs" --target "$@"
}
# The folder with all archives that have been built.
collect_libraries() {
  mkdir -p "$1"
  find "$final/build" -name '*.a' -not -path "$1/*" -exec cp -t "$1" {} +
}

if [[ ! -f $final/prefix/lib/libllama.a ]]; then
  compile "ggml and libllama (once; about 4 minutes on two cores)" llama llama-common llama-common-base cpp-httplib
  rm -rf "$final/prefix.new"
  mkdir -p "$final/prefix.new/include" "$final/prefix.new/bin"
  cp "$final"/src/include/*.h "$final"/src/ggml/include/*.h "$final/prefix.new/include"
  collect_libraries "$final/prefix.new/lib"
  [[ -f $final/prefix.new/lib/libllama.a ]] || fail "the build made no libllama.a; see $log"
  mv "$final/prefix.new" "$final/prefix"
fi
if [[ ! -f $final/$last ]]; then
  compile "llama.cpp's server (once; about 3 minutes on two cores)" llama-server test-llama-archs
  collect_libraries "$final/build/collected"
  mv "$final"/build/collected/*.a "$final/prefix/lib/"
  for program in test-llama-archs llama-server; do
    find "$final/build" -name "$program" -type f -exec mv {} "$final/prefix/bin/$program" \;
  done
  [[ -f $final/$last ]] || fail "the build made no llama-server; see $log"
  rm -rf "$final/build"
fi
say "ggml and libllama are in $final"
printf '%s\n' "$final"
