// SPDX-License-Identifier: Apache-2.0
// What the kernels that write to a cache share: rows entering, and tiles being coded.
#pragma once

#include <cstdint>

#include "codec/token_gain.h"
#include "cuda/attend_call.h"

namespace kvspan::cuda {

struct AppendItem {
  const std::int32_t* row_pages;
  std::int32_t first_position = 0, tokens = 0;
  std::int32_t tokens_before = 0;  // of the items before this one
};

// Rows of one layer enter the full-rank pages.
struct AppendCall {
  AppendItem items[kMaxItems];
  std::int32_t item_count = 0, total_tokens = 0;
  std::int32_t kv_heads = 0, key_dim = 0, value_dim = 0;
  RowsPointer keys, values;  // [total tokens, kv_heads, dim]
  std::byte* pages = nullptr;
  std::int64_t row_layer_halves = 0;
};

struct EncodeItem {
  const std::int32_t* row_pages;
  const std::int32_t* code_pages;
  std::int32_t first_position = 0, halves = 0;  // half tiles of 16 tokens
  std::int32_t halves_before = 0;
};

// Half tiles of one layer are coded.
struct EncodeCall {
  EncodeItem items[kMaxItems];
  std::int32_t item_count = 0, total_halves = 0;
  std::int32_t kv_heads = 0, key_dim = 0, value_dim = 0;
  std::int32_t rope_pairs = 0;
  bool neighbours = false;
  float rope_magnitude = 1.0f;
  std::int32_t anchor = 0;
  const float2* turns = nullptr;         // [turn_count][rope_pairs], as AttendCall has them
  const float2* offset_turns = nullptr;  // [anchor][rope_pairs]: of t - t_a, from -anchor / 2 on
  std::int32_t groups = 0, group_heads = 0, chunks = 0;
  std::int32_t components = 0;  // of a group, padded to whole 64
  // Of each four components where their digits are, the lowest first: places / 4; negative: no more.
  const short4* quad_digits = nullptr;  // [groups][components / 4]
  struct Group {
    const float* analysis;       // A' [D, components]
    const float* means;          // [D], keys before RoPE, then values
    const float* inverse_steps;  // [components], 0 at empty places
    const float* lowest;  // of codes, two's complement
    const float* highest;
    GainRule gain;  // of all components
    bool has_gain = true;
  };
  const Group* group_table = nullptr;
  const std::uint8_t* chunk_widths = nullptr;
  const std::int32_t* chunk_offsets = nullptr;
  const std::int32_t* tile_bytes = nullptr;
  const std::int32_t* group_offsets = nullptr;
  std::int32_t most_tile_bytes = 0;
  std::byte* pages = nullptr;
  std::int64_t row_layer_halves = 0;
};

}  // namespace kvspan::cuda
