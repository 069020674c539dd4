#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles all CUDA code on a machine that need not have a GPU, without linking or running it.
# nvcc: the one of CUDACXX, else on the PATH or in /usr/local/cuda, else that of NVIDIA's Python packages
# (120 MB, once, in the user's cache folder; KVSPAN_NVCC=packages asks for it). Those lack cuBLAS and cuSOLVER,
# hundreds of megabytes: files that include them are left out then, and named.
# Exit status 77: there is no nvcc and the packages cannot be had.
set -euo pipefail
tree=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.." && pwd)
version=13.4.92
packages=(nvidia-cuda-nvcc==$version nvidia-nvvm==$version nvidia-cuda-crt==$version nvidia-cuda-runtime==$version
  nvidia-cuda-cccl==13.3.5.0.6)

nvcc_of_packages() {
  local folder=${XDG_CACHE_HOME:-$HOME/.cache}/kvspan/nvcc-$version
  if [[ ! -e $folder/complete ]]; then
    rm -rf "$folder"
    python3 -m venv "$folder" >&2
    "$folder/bin/pip" install --quiet --no-deps "${packages[@]}" >&2 || { rm -rf "$folder"; return 1; }
    touch "$folder/complete"
  fi
  echo "$folder"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc
}

nvcc=${CUDACXX:-$(command -v nvcc || true)}
[[ -n $nvcc || ! -x /usr/local/cuda/bin/nvcc ]] || nvcc=/usr/local/cuda/bin/nvcc
if [[ -z $nvcc || ${KVSPAN_NVCC:-} == packages ]]; then
  nvcc=$(nvcc_of_packages) || { echo "check_cuda: no nvcc, and NVIDIA's packages cannot be had"; exit 77; }
fi
cuda=$(cd -- "$(dirname -- "$(readlink -f -- "$nvcc")")/.." && pwd)/include
ggml=$("$tree/scripts/dependencies.sh" --path)
flags=(-std=c++20 "-I$tree" "-I$tree/src" "-I$tree/include" -isystem "$ggml/prefix/include" -isystem "$ggml/src/ggml/src"
  "-DKVSPAN_SOURCE_DIR=\"$tree\"")
warnings=(-Wall -Wextra -Wpedantic -Wshadow -Werror)

# One .cu file, or .cc files as one, which takes a fifth of the time.
check() {
  case $1 in
    *.cu) "$nvcc" --ptx -Xcicc -O1 -arch=compute_90a --expt-relaxed-constexpr "${flags[@]}" -o /dev/null "$1" ;;
    *) printf '#include "%s"\n' "$@" | c++ -x c++ -fsyntax-only "${warnings[@]}" "${flags[@]}" -isystem "$cuda" - ;;
  esac
}

files=() tests=() left_out=()
while read -r file; do
  if [[ ! -e $cuda/cublas_v2.h ]] &&
    c++ -E -x c++ "${flags[@]}" -isystem "$cuda" "$file" 2>&1 | grep -cE "(cublas_v2|cusolverDn)\.h" >/dev/null; then
    left_out+=("${file#"$tree/"}")
  elif [[ $file == */tests/*.cc ]]; then
    tests+=("$file")
  else
    files+=("$file")
  fi
done < <(find "$tree/src/cuda" "$tree/src/llama/cuda" "$tree/tests/cuda" -name '*.cu' -o -name '*.cc' | sort)

# As many at a time as there are processors.
failed=0
start() {
  while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n || failed=1; done
  { check "$@" || { echo "check_cuda: ${*#"$tree/"} does not compile"; exit 1; }; } &
}
start "${tests[@]}"
for file in "${files[@]}"; do start "$file"; done
while [[ -n $(jobs -p) ]]; do wait -n || failed=1; done
echo "check_cuda: $((${#files[@]} + ${#tests[@]})) files by $nvcc${left_out[*]:+; left out without cuBLAS: ${left_out[*]}}"
exit $failed
