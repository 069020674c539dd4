// SPDX-License-Identifier: Apache-2.0
// The largest of a list of scores.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvspan {

// [scores], 1 for the `count` largest; of equal ones the older.
std::vector<std::uint8_t> largest(std::span<const float> scores, std::int64_t count);

}  // namespace kvspan
