// SPDX-License-Identifier: Apache-2.0
#include "method/reconstruct.h"

#include <vector>

#include "cache/code/coded_side.h"

namespace kvspan {
namespace {

// One side of a segment, [tokens, heads, dim].
std::vector<float> side_rows(const Segment& segment, const RowSide& rows, const CodedSide* coded,
                             std::int32_t heads, std::int32_t dim) {
  const auto n = static_cast<std::size_t>(segment.tokens());
  const auto h = static_cast<std::size_t>(heads), d = static_cast<std::size_t>(dim);
  std::vector<float> out(n * h * d);
  for (std::int32_t head = 0; head < heads; ++head) {
    float* const to = out.data() + static_cast<std::size_t>(head) * d;
    if (coded != nullptr) {
      coded->reconstruct(head, segment.positions, 0, {to, {n, d}, {h * d, 1}});
      // A factor of the logits is one of the keys.
      const float gamma = coded->part(head).code->gamma();
      for (std::size_t t = 0; gamma != 1.0f && t < n; ++t) {
        for (std::size_t j = 0; j < d; ++j) to[t * h * d + j] *= gamma;
      }
      continue;
    }
    for (std::size_t t = 0; t < n; ++t) {
      rows.read(head, static_cast<std::int32_t>(t), to + t * h * d);
    }
  }
  return out;
}

}  // namespace

SegmentList reconstructed(const SegmentList& list) {
  GroupShape shape = list.shape();
  shape.element = Element::kF32;
  SegmentList rebuilt(shape, nullptr);
  const auto h = static_cast<std::size_t>(shape.heads);
  for (const Segment& segment : list.segments()) {
    std::vector<std::int32_t> positions;
    for (std::int32_t t = 0; t < segment.tokens(); ++t) {
      positions.push_back(segment.positions.at(t));
    }
    const std::vector<float> keys =
        side_rows(segment, segment.keys, segment.coded_keys.get(), shape.heads, shape.key_dim);
    const std::vector<float> values = side_rows(segment, segment.values, segment.coded_values.get(),
                                                shape.heads, shape.value_dim);
    const std::int32_t first = rebuilt.tokens();
    rebuilt.extend(positions);
    for (std::int32_t head = 0; head < shape.heads; ++head) {
      rebuilt.write(
          first, {keys.data(), {positions.size(), h, static_cast<std::size_t>(shape.key_dim)}},
          {values.data(), {positions.size(), h, static_cast<std::size_t>(shape.value_dim)}}, head,
          0, segment.tokens());
    }
  }
  return rebuilt;
}

}  // namespace kvspan
