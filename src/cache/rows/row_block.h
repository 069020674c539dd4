// SPDX-License-Identifier: Apache-2.0
// Rows read out of a cache as floats, oldest first; keys after RoPE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvspan/cache.h"
#include "kvspan/tensor_view.h"

namespace kvspan {

struct RowBlock {
  std::int32_t heads = 0, key_dim = 0, value_dim = 0;
  std::vector<float> keys, values;  // [n, heads, dim]
  std::vector<std::int32_t> positions;

  std::size_t size() const noexcept { return positions.size(); }
  std::size_t key_width() const noexcept { return static_cast<std::size_t>(heads * key_dim); }
  std::size_t value_width() const noexcept { return static_cast<std::size_t>(heads * value_dim); }
  KvRows rows(std::size_t first, std::size_t n) const;
  // Rows of one head, [n, dim].
  TensorView<const float, 2> keys_of(std::int32_t head) const;
  TensorView<const float, 2> values_of(std::int32_t head) const;

  // Room for n rows more, whose numbers are 0.
  void grow(std::size_t n);
  // By position, where blocks of several stores were read one after the other.
  void sort();
};

}  // namespace kvspan
