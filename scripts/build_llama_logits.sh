#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds llama_logits (see llama_logits.cc) against a static build of the pinned llama.cpp.
# Usage: build_llama_logits.sh LLAMA_CPP_SOURCE LLAMA_CPP_BUILD OUTPUT
set -eu
here=$(dirname "$0")
c++ -std=c++20 -O2 -Wall -Wextra -I"$1/include" -I"$1/ggml/include" "$here/llama_logits.cc" -o "$3" \
  "$2/src/libllama.a" "$2/ggml/src/libggml.a" "$2/ggml/src/libggml-cpu.a" "$2/ggml/src/libggml-base.a" \
  -fopenmp -lpthread -ldl -lm
