// SPDX-License-Identifier: Apache-2.0
#include "cache/segments/join_segments.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/expect.h"
#include "base/half.h"
#include "cache/code/coded_side.h"

namespace kvspan {
namespace {

// Whether joining costs no list of positions that was not there before.
bool positions_join(const Positions& a, const Positions& b) noexcept {
  if (a.bytes() > 0 && b.bytes() > 0) return true;
  return a.bytes() == 0 && b.bytes() == 0 && b.at(0) == a.at(a.size() - 1) + 1;
}

bool sides_join(const CodedSide* a, std::int32_t tokens, const CodedSide* b) noexcept {
  if (a == nullptr || b == nullptr) return a == b;
  return a->joins(tokens, *b);
}

bool segments_join(const Segment& a, const Segment& b, std::int32_t most) noexcept {
  return a.coded() && b.coded() && a.tokens() <= b.tokens() && a.tokens() + b.tokens() <= most &&
         positions_join(a.positions, b.positions) &&
         sides_join(a.coded_keys.get(), a.tokens(), b.coded_keys.get()) &&
         sides_join(a.coded_values.get(), a.tokens(), b.coded_values.get());
}

Segment join(const Segment& a, const Segment& b, const GroupShape& shape,
             const std::shared_ptr<Ledger>& ledger) {
  Segment to;
  to.capacity = a.tokens() + b.tokens();
  for (const Segment* from : {&a, &b}) {
    for (std::int32_t t = 0; t < from->tokens(); ++t) {
      to.positions.push(from->positions.at(t), to.capacity, ledger);
    }
  }
  const auto rows = [&](const RowSide& first, const RowSide& second, std::int32_t dim) {
    RowSide side(shape.heads, dim, to.capacity, shape.element, ledger);
    for (std::int32_t t = 0; t < a.tokens(); ++t) side.copy(t, first, t);
    for (std::int32_t t = 0; t < b.tokens(); ++t) side.copy(a.tokens() + t, second, t);
    return side;
  };
  if (a.coded_keys) {
    to.coded_keys = a.coded_keys->joined(a.tokens(), *b.coded_keys, b.tokens(), ledger);
  } else {
    to.keys = rows(a.keys, b.keys, shape.key_dim);
  }
  if (a.coded_values) {
    to.coded_values = a.coded_values->joined(a.tokens(), *b.coded_values, b.tokens(), ledger);
  } else {
    to.values = rows(a.values, b.values, shape.value_dim);
  }
  return to;
}

}  // namespace

bool CodedSide::joins(std::int32_t tokens, const CodedSide& next) const noexcept {
  if (parts_.size() != next.parts_.size() || has_residuals() != next.has_residuals()) return false;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].code != next.parts_[i].code) return false;
    const CodecSpec& spec = parts_[i].code->codec().spec();
    if (!is_integer(spec.kind) || spec.unit_rows == 1) continue;
    if (spec.unit_rows == 0 || static_cast<std::size_t>(tokens) % spec.unit_rows != 0) return false;
  }
  return true;
}

std::shared_ptr<const CodedSide> CodedSide::joined(std::int32_t tokens, const CodedSide& next,
                                                   std::int32_t next_tokens,
                                                   const std::shared_ptr<Ledger>& ledger) const {
  KVSPAN_EXPECT(joins(tokens, next), "the same codes, and scales that end where tokens do");
  const auto n = static_cast<std::size_t>(tokens), more = static_cast<std::size_t>(next_tokens);
  std::shared_ptr<CodedSide> side(new CodedSide);
  side->tokens_ = tokens + next_tokens;
  side->part_of_head_ = part_of_head_;
  side->highest_rank_ = highest_rank_;
  side->parts_.reserve(parts_.size());
  const auto put = [](Buffer& to, const Buffer& a, std::size_t a_bytes, const Buffer& b,
                      std::size_t b_bytes) {
    if (a_bytes > 0) std::memcpy(to.data(), a.data(), a_bytes);
    if (b_bytes > 0) std::memcpy(to.data() + a_bytes, b.data(), b_bytes);
  };
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part &a = parts_[i], &b = next.parts_[i];
    const Codec& codec = a.code->codec();
    const EncodedSize first = codec.encoded_size(n), second = codec.encoded_size(more);
    Part part;
    part.code = a.code;
    part.first_head = a.first_head;
    part.quantization = std::max(a.quantization, b.quantization);
    part.size = codec.encoded_size(n + more);
    KVSPAN_EXPECT(part.size.payload_bytes == first.payload_bytes + second.payload_bytes &&
                      part.size.scale_bytes == first.scale_bytes + second.scale_bytes,
                  "sizes add up");
    part.payload = Buffer(part.size.payload_bytes, MemoryKind::kCoefficients, ledger);
    part.scales = Buffer(part.size.scale_bytes, MemoryKind::kScales, ledger);
    put(part.payload, a.payload, first.payload_bytes, b.payload, second.payload_bytes);
    put(part.scales, a.scales, first.scale_bytes, b.scales, second.scale_bytes);
    side->parts_.push_back(std::move(part));
  }
  if (has_residuals()) {
    const std::size_t heads = part_of_head_.size();
    side->residuals_ =
        Buffer(heads * (n + more) * sizeof(BFloat16), MemoryKind::kPositions, ledger);
    BFloat16* to = side->residuals_.as<BFloat16>();
    for (std::size_t h = 0; h < heads; ++h, to += n + more) {
      std::memcpy(to, residuals_.as<BFloat16>() + h * static_cast<std::size_t>(tokens_),
                  n * sizeof(BFloat16));
      std::memcpy(to + n,
                  next.residuals_.as<BFloat16>() + h * static_cast<std::size_t>(next.tokens_),
                  more * sizeof(BFloat16));
    }
  }
  return side;
}

void join_before(std::vector<Segment>& segments, std::size_t last, std::int32_t most,
                 const GroupShape& shape, const std::shared_ptr<Ledger>& ledger) {
  for (; last > 0 && segments_join(segments[last - 1], segments[last], most); --last) {
    segments[last - 1] = join(segments[last - 1], segments[last], shape, ledger);
    segments.erase(segments.begin() + static_cast<std::ptrdiff_t>(last));
  }
}

}  // namespace kvspan
