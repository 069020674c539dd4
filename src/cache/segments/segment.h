// SPDX-License-Identifier: Apache-2.0
// A segment: the tokens of a group of KV heads that share one representation. It holds their
// positions and two sides, keys and values. A side without a code is full rank: rows in f16 or f32,
// per head contiguous, so that a kernel reads one head of a segment as one stream. A coded side
// (cache/code/coded_side.h) is written once, by encode_rows, and takes no further rows.
// Copying a segment shares its memory; writing through prepare() un-shares it first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/memory.h"
#include "cache/positions.h"

namespace kvspan {

class CodedSide;

enum class Element : std::uint8_t { kF16, kF32 };
constexpr std::size_t bytes_of(Element element) noexcept {
  return element == Element::kF16 ? 2 : 4;
}

// Rows are padded with zeros to a multiple of this many elements, so that kernels need no tails
// along the dimension. Head dimensions in use are multiples of 8; for those it costs nothing.
inline constexpr std::int32_t kRowMultiple = 8;
constexpr std::int32_t padded_dim(std::int32_t dim) noexcept {
  return (dim + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

// One head's full-rank rows as kernels read them: row t starts at element t * stride and is
// followed by zeros up to stride.
struct RowsView {
  const std::byte* data = nullptr;
  std::int32_t stride = 0;  // elements, a multiple of kRowMultiple
  Element element = Element::kF16;

  RowsView from(std::int32_t token) const noexcept {
    return {data + static_cast<std::size_t>(token) * static_cast<std::size_t>(stride) *
                       bytes_of(element),
            stride, element};
  }
};

// Full-rank rows of all heads of one side: [heads][capacity][stride].
class RowSide {
 public:
  RowSide() = default;
  RowSide(std::int32_t heads, std::int32_t dim, std::int32_t capacity, Element element,
          const std::shared_ptr<Ledger>& ledger);

  RowsView head(std::int32_t head) const noexcept;
  // Writes `dim` numbers as row `token` of `head`, rounding to nearest even. Call prepare() first.
  void write(std::int32_t head, std::int32_t token, const float* row) noexcept;
  // The `dim` numbers of row `token` of `head`.
  void read(std::int32_t head, std::int32_t token, float* row) const noexcept;
  // Row `token` of all heads becomes row `from_token` of `from`, a side of the same shape, bit for
  // bit.
  void copy(std::int32_t token, const RowSide& from, std::int32_t from_token) noexcept;
  // The memory of row `token` of `head`, `dim` elements. Call prepare() first to write there.
  std::byte* row(std::int32_t head, std::int32_t token) noexcept {
    return rows_->data() + offset_bytes(head, token);
  }
  void prepare(const std::shared_ptr<Ledger>& ledger);
  std::size_t bytes() const noexcept { return rows_ ? rows_->bytes() : 0; }

 private:
  std::size_t offset_bytes(std::int32_t head, std::int32_t token) const noexcept;

  std::shared_ptr<Buffer> rows_;
  std::int32_t heads_ = 0;
  std::int32_t dim_ = 0;
  std::int32_t stride_ = 0;
  std::int32_t capacity_ = 0;
  Element element_ = Element::kF16;
};

struct Segment {
  std::int32_t capacity = 0;  // tokens
  Positions positions;
  RowSide keys;
  RowSide values;
  std::shared_ptr<const CodedSide> coded_keys;  // then keys hold nothing
  std::shared_ptr<const CodedSide> coded_values;

  std::int32_t tokens() const noexcept { return positions.size(); }
  bool coded() const noexcept { return coded_keys != nullptr || coded_values != nullptr; }
  // Tokens that stay or go together, counted from the first, as in CodedSide::unit.
  std::int32_t unit() const noexcept;
  // Rows that may still be written here.
  std::int32_t room() const noexcept { return coded() ? 0 : capacity - tokens(); }
  // Un-shares what a writer is about to change.
  void prepare(const std::shared_ptr<Ledger>& ledger) {
    keys.prepare(ledger);
    values.prepare(ledger);
  }
};

}  // namespace kvspan
