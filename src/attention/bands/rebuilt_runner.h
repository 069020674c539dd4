// SPDX-License-Identifier: Apache-2.0
// One item of attend_rebuilt: a block of query positions over all rebuilt rows of one KV head, by one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "attention/bands/rounded_rows.h"
#include "attention/bands/stretch_softmax.h"
#include "attention/token_store.h"
#include "cache/positions.h"

namespace kvspan {

// Rows of some KV heads, from first_head of the layer on.
struct RebuiltPart {
  std::int32_t first_head;
  const RoundedRows* rows;
  const Positions* positions;
  const BandsCode* values;  // whose means the rows of values lack
};

class RebuiltRunner {
 public:
  // Query rows that meet a tile together.
  static constexpr std::int32_t kRowBlock = 60;
  static std::int32_t block_positions(const LayerShape& layer) noexcept {
    return std::max(1, kRowBlock / (layer.query_heads / layer.kv_heads));
  }

  // Works in `work`, of work_floats(), on rows of the size of these.
  RebuiltRunner(const AttendCall& call, const RoundedRows& rows, float* work);
  static std::size_t work_floats(const LayerShape& layer, const RoundedRows& rows);

  // Query positions [first, last) of the call, with one head of the part, to the call's results.
  void run(const RebuiltPart& part, std::int32_t head, std::int32_t first, std::int32_t last);

 private:
  explicit RebuiltRunner(const AttendCall& call) : call_(call) {}
  void place(WorkPlaces& places, const RoundedRows& rows);
  void load_queries(const RoundedRows& rows);
  void meet(const RebuiltPart& part, std::int32_t token, std::int32_t tokens);
  void write(const RoundedRows& rows, const float* mean);
  std::int32_t position_of(std::int32_t row) const {
    return call_.queries.positions[static_cast<std::size_t>(first_ + row / group())];
  }
  std::int32_t group() const { return call_.layer.query_heads / call_.layer.kv_heads; }
  std::int32_t query_head(std::int32_t row) const { return (first_head_ + head_) * group() + row % group(); }

  std::int32_t most_rows() const { return block_positions(call_.layer) * group(); }
  std::int32_t zeros_count() const { return std::max(most_rows(), StretchSoftmax::kTokens); }

  const AttendCall& call_;
  const AttentionKernels& kernels_ = attention_kernels(cpu_level());
  const BandsAttentionKernels& bands_ = bands_attention_kernels(cpu_level());
  std::int32_t first_head_ = 0, head_ = 0, first_ = 0, rows_ = 0;  // of the item
  StretchSoftmax softmax_;
  BandsQueries asked_;
  std::int8_t* rounded_ = nullptr;
  float *query_ = nullptr, *scales_ = nullptr;
  float* zeros_ = nullptr;  // offsets of queries and means of tokens, which rows have none of
  float* out_ = nullptr;  // [rows][value_numbers]
};

}  // namespace kvspan
