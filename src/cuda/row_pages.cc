// SPDX-License-Identifier: Apache-2.0
#include "cuda/row_pages.h"

#include <algorithm>

#include "cuda/attend_constants.h"

namespace kvspan::cuda {
namespace {

// Calls use(place in the page, KV head, numbers of a row in the page, its number in the group's
// rows, group, side) for each row that the page holds of those held.
template <class Use>
void each_row(const LayerShape& layer, const LayerTokens& held, std::int32_t page, const Use& use) {
  const PositionRange here{page * kRowPageTokens, (page + 1) * kRowPageTokens};
  const std::size_t heads = static_cast<std::size_t>(layer.kv_heads) / held.groups.size();
  const auto kd = static_cast<std::size_t>(layer.key_dim);
  const auto vd = static_cast<std::size_t>(layer.value_dim);
  std::size_t before = 0;
  for (const PositionRange& range : {held.before(), held.after()}) {
    const PositionRange met = shared_of(range, here);
    for (std::int32_t p = met.first; p < met.last; ++p) {
      const auto slot = static_cast<std::size_t>(p - here.first);
      const std::size_t row = before + static_cast<std::size_t>(p - range.first);
      for (std::size_t h = 0; h < static_cast<std::size_t>(layer.kv_heads); ++h) {
        const std::size_t head = h * kRowPageTokens * (kd + vd);
        const std::size_t in_group = row * heads + h % heads;
        use(head + slot * kd, h / heads, in_group * kd, kd, true);
        use(head + kRowPageTokens * kd + slot * vd, h / heads, in_group * vd, vd, false);
      }
    }
    before += static_cast<std::size_t>(range.size());
  }
}

}  // namespace

PositionRange shared_of(PositionRange a, PositionRange b) {
  return {std::max(a.first, b.first), std::min(a.last, b.last)};
}

PositionRange pages_of(PositionRange positions, std::int32_t page_tokens) {
  if (positions.size() == 0) return {};
  return {positions.first / page_tokens, (positions.last + page_tokens - 1) / page_tokens};
}

std::vector<Half> row_page(const LayerShape& layer, const LayerTokens& from, std::int32_t page) {
  std::vector<Half> numbers(static_cast<std::size_t>(kRowPageTokens) *
                            static_cast<std::size_t>(layer.kv_heads) *
                            static_cast<std::size_t>(layer.key_dim + layer.value_dim));
  each_row(layer, from, page,
           [&](std::size_t to, std::size_t group, std::size_t at, std::size_t dim, bool keys) {
             const GroupTokens& rows = from.groups[group];
             std::copy_n((keys ? rows.keys : rows.values).data() + at, dim, numbers.data() + to);
           });
  return numbers;
}

void read_row_page(const LayerShape& layer, std::span<const Half> numbers, std::int32_t page,
                   LayerTokens& to) {
  each_row(layer, to, page,
           [&](std::size_t from, std::size_t group, std::size_t at, std::size_t dim, bool keys) {
             GroupTokens& rows = to.groups[group];
             std::copy_n(numbers.data() + from, dim, (keys ? rows.keys : rows.values).data() + at);
           });
}

}  // namespace kvspan::cuda
