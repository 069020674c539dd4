// SPDX-License-Identifier: Apache-2.0
// Full-rank rows of a layer (method/layer_tokens.h) as pages of the device hold them, and back. A
// page has 64 positions: of each KV head keys [64, key_dim], then values [64, value_dim]. Plain
// functions of memory; no device is needed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/half.h"
#include "kvspan/shape.h"
#include "method/layer_tokens.h"

namespace kvspan::cuda {

// Pages of so many positions that hold some of these: numbers from first on, below last.
PositionRange pages_of(PositionRange positions, std::int32_t page_tokens);
// Positions of both.
PositionRange shared_of(PositionRange a, PositionRange b);

// A whole page, with zeros where nothing is held.
std::vector<Half> row_page(const LayerShape& layer, const LayerTokens& from, std::int32_t page);
// Rows that are held become those of `to`, whose groups have room for them.
void read_row_page(const LayerShape& layer, std::span<const Half> numbers, std::int32_t page,
                   LayerTokens& to);

}  // namespace kvspan::cuda
