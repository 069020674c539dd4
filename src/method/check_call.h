// SPDX-License-Identifier: Apache-2.0
// What callers of a cache can get wrong in a step, answered before anything is touched: shapes,
// missing memory, positions, numbers that are not finite. The answer depends on the arguments
// alone, so every member of a team finds the same.
#pragma once

#include <cstdint>
#include <span>

#include "kvspan/cache.h"
#include "kvspan/result.h"

namespace kvspan {

// Positions are below this.
inline constexpr std::int32_t kPositionLimit = 1 << 30;
// Full-rank rows in f16 hold numbers below this; larger ones would round to infinity.
inline constexpr float kF16Limit = 65520.0f;

Status check_layer(const CacheShape& shape, int layer);
// Shapes and positions of rows or queries; the numbers are not read.
Status check_rows(const LayerShape& shape, int layer, const KvRows& rows);
Status check_queries(const LayerShape& shape, int layer, const Queries& queries,
                     const TensorView<float, 3>& out);

// Attention needs tokens: `next` is the position behind those that the layer has had.
Status check_held(int layer, std::int32_t next);
// For caches that count tokens instead of keeping positions: those of rows go on at `next` without a
// gap, and queries are at the last positions before it.
Status check_next_positions(int layer, std::span<const std::int32_t> positions, std::int32_t next);
Status check_last_positions(int layer, std::span<const std::int32_t> positions, std::int32_t next);

// Fails, naming layer, row, head and place, on a number that is not finite or not below `limit`.
// Cost: one pass over the numbers, a few GB/s.
Status check_numbers(const char* what, int layer, const TensorView<const float, 3>& rows,
                     float limit);
// The first row of [begin, end) that has such a number, or end.
std::size_t first_bad_row(const TensorView<const float, 3>& rows, std::size_t begin,
                          std::size_t end, float limit) noexcept;

}  // namespace kvspan
