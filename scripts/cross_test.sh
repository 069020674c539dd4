#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the kernels of the other processor family and runs their tests under emulation: x86 on
# Arm, Arm on x86. Rooms codec, cache and attention with what they stand on; what emulation cannot
# run (AVX-512, AMX) is compiled only.
# Needs (Debian): qemu-user, g++-x86-64-linux-gnu or g++-aarch64-linux-gnu, libgtest-dev (its
# sources), libfmt-dev (its headers). Without them it says so and exits with 77.
# usage: scripts/cross_test.sh BUILD_FOLDER [--compile-only]
set -euo pipefail
build=${1:?usage: cross_test.sh BUILD_FOLDER [--compile-only]}
root=$(cd "$(dirname "$0")/.." && pwd)
case $(uname -m) in
  aarch64) target=x86_64 other='neon\|i8mm' ;;
  x86_64) target=aarch64 other='avx2\|avx512\|vnni\|vbmi\|amx' ;;
  *) echo "no other family known for $(uname -m)"; exit 77 ;;
esac
compiler=$target-linux-gnu-g++ emulator=qemu-$target gtest=/usr/src/googletest/googletest
for needed in "$compiler" "$emulator"; do
  command -v "$needed" > /dev/null || { echo "missing: $needed"; exit 77; }
done
[[ -f $gtest/src/gtest-all.cc ]] || { echo "missing: $gtest"; exit 77; }
[[ -f /usr/include/fmt/format.h ]] || { echo "missing: fmt headers"; exit 77; }

mkdir -p "$build/include"
ln -sfn /usr/include/fmt "$build/include/fmt"  # alone: other headers there are this machine's
ln -sfn "$root" "$build/root"                  # ninja's paths may not hold spaces
flags_of() {
  case $1 in
    *_avx512.cc | *_vnni.cc | *_vbmi.cc | *_amx.cc) echo "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c" \
                      "-Wno-uninitialized -Wno-maybe-uninitialized" ;;&
    *_vnni.cc | *_amx.cc) echo "-mavx512vnni" ;;
    *_vbmi.cc) echo "-mavx512vbmi" ;;
    *_avx2.cc) echo "-mavx2 -mfma -mf16c" ;;
    *_i8mm.cc) echo "-march=armv8.2-a+fp16+dotprod+i8mm -Wno-maybe-uninitialized" ;;
    *_neon.cc) echo "-march=armv8.2-a+fp16+dotprod -Wno-maybe-uninitialized" ;;  # unrolled loops, at -O1
  esac
  [[ $1 != src/codec/* ]] || echo "-ffp-contract=off"
}
# Files that must be compiled apart from the others of their room: as cmake/KvspanRoom.cmake's APART says,
# and those with flags of their own.
apart() {
  local room; room=$(cut -d/ -f1,2 <<< "$1")
  tr '\n' ' ' < "$root/$room/CMakeLists.txt" | sed -n 's/.*APART \([^)]*\)).*/\1/p' | tr '/ ' '\n\n' | grep -qw "$(basename "$1")" ||
    [[ $1 =~ _(amx|avx2|avx512|vnni|vbmi|i8mm|neon)\.cc$ ]]
}
# compile FOLDER FILES...: rules for their objects, which $objects gets: one for each file apart, one for all others.
compile() {
  local folder=$1 source; shift
  mkdir -p "$build/$folder"
  : > "$build/$folder/united.new"
  for source in "$@"; do
    if apart "$source"; then
      mkdir -p "$build/$(dirname "$source")"
      echo "build $source.o: cc root/$source"
      echo "  flags = $(flags_of "$source" | tr '\n' ' ')"
      objects+=" $source.o"
    else
      echo "#include \"root/$source\"" >> "$build/$folder/united.new"
    fi
  done
  # As it was, if nothing has changed: then nothing is compiled again.
  cmp -s "$build/$folder/united.new" "$build/$folder/united.cc" ||
    cp "$build/$folder/united.new" "$build/$folder/united.cc"
  echo "build $folder/united.o: cc $folder/united.cc"
  echo "  flags = $(flags_of "$1" | tr '\n' ' ')"
  objects+=" $folder/united.o"
}
launcher=$(command -v ccache || true)
{
  echo 'rule cc'
  echo "  command = $launcher $compiler -std=c++20 -O1 -Wall -Wextra -Wshadow -Werror \$flags" \
       "-DFMT_HEADER_ONLY -DKVSPAN_SOURCE_DIR='\"$root\"' -I. -Iroot/include -Iroot/src -Iroot" \
       "-isystem include -isystem $gtest/include -I$gtest -MD -MF \$out.d -c \$in -o \$out"
  echo '  deps = gcc'
  echo '  depfile = $out.d'
  echo 'rule link'
  echo "  command = $compiler \$in -o \$out -lpthread"
  objects=
  for room in tests/attention tests/codec src/cache src/attention src/codec src/linalg src/base tests/cache; do
    case $room in
      tests/attention) names="attend bands/attend_bands bands/attend_rebuilt bands/bands_kernels bands/bands_synthesis kernels coefficient_space" ;;
      tests/codec) names="bands/bands_pack codec hadamard kernels bands/trellis" ;;
      tests/cache) names="half_rows narrow" ;;
      *) names= ;;
    esac
    if [[ $names ]]; then
      files=()
      for name in $names; do files+=("$room/${name}_test.cc"); done
    else
      mapfile -t files < <(cd "$root" && find "$room" -name '*.cc' | sort | grep -v "_\($other\)\.cc")
    fi
    compile "$room" "${files[@]}"
  done
  for source in gtest-all gtest_main; do
    echo "build $source.o: cc $gtest/src/$source.cc"
    echo "  flags = -w"
    objects+=" $source.o"
  done
  echo "build kernel_tests: link $objects"
} > "$build/build.ninja"
ninja -C "$build" -j2
[[ ${2:-} != --compile-only ]] || exit 0

# Emulation is slow: the kernels, and one test of each use of them.
cpu=()
[[ $target != x86_64 ]] || cpu=(-cpu max)
filter='*AtLevel*:Attend.MatchesDoublePrecisionForAllHead*:CoefficientSpace*SeriesOfSegments*:*Level*:*Kernel*:*Narrow*'
run() {  # one of two parts, side by side
  GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=$1 "$emulator" "${cpu[@]}" -L "/usr/$target-linux-gnu" \
    "$build/kernel_tests" --gtest_brief=1 --gtest_filter="$filter"
}
run 0 &
run 1
wait $!
echo "the tests of $target pass under emulation"
