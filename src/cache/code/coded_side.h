// SPDX-License-Identifier: Apache-2.0
// One side of a coded segment, keys or values: the coefficients of its tokens under one code per
// head, or per run of joined heads, and what each token lost by being coded.
// Immutable once made, so forks share it and dropping tokens from the end needs no re-encoding.
// Bytes: coefficients and scales as the codec writes them, residual norms in 2 bytes per token and
// head (MemoryKind::kPositions). The codes' own bytes are the codes'.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "cache/code/code.h"
#include "cache/positions.h"
#include "kvspan/result.h"
#include "kvspan/tensor_view.h"

namespace kvspan {

// Rows to be coded, oldest first.
struct SideRows {
  TensorView<const float, 3> rows;  // [n, heads, dim], as attention sees them: keys after RoPE
  std::span<const std::int32_t> positions;  // [n]
};

class CodedSide {
 public:
  // Coefficients [tokens, r] of the heads of one code.
  struct Part {
    std::shared_ptr<const Code> code;
    std::int32_t first_head = 0;
    EncodedSize size;
    Buffer payload;
    Buffer scales;
    float quantization = 0.0f;  // >= |c - c^|_2 of every token

    // Rows first .. first + n - 1 into out [n, r].
    void coefficients(std::int32_t first, TensorView<float, 2> out) const noexcept;
  };

  // The codes follow the heads: their heads add up to those of the rows. Fails on codes that do not
  // fit the rows, on keys coded as values or values as keys, and where the codec does (numbers that
  // are not finite or do not fit). Without `residuals` none are kept.
  static Result<std::shared_ptr<const CodedSide>> encode(
      const SideRows& rows, bool keys, std::span<const std::shared_ptr<const Code>> codes,
      bool residuals, const std::shared_ptr<Ledger>& ledger);

  // The same tokens under other codes of the same heads, from coefficients that the caller computed
  // from this side's: coefficients[i] [tokens, rank] belong to codes[i]. `moved` [heads][tokens],
  // or empty where no residuals are kept: at least how far each row as attention sees it moved by
  // it, without quantization; the residual norms grow by that and by the new quantization.
  Result<std::shared_ptr<const CodedSide>> recode(
      std::span<const std::shared_ptr<const Code>> codes,
      std::span<const TensorView<const float, 2>> coefficients, std::span<const float> moved,
      const std::shared_ptr<Ledger>& ledger) const;
  // The same bytes read under other codes of the same shape and codec. Residual norms are dropped:
  // they spoke of the old codes.
  std::shared_ptr<const CodedSide> reread(std::span<const std::shared_ptr<const Code>> codes,
                                          const std::shared_ptr<Ledger>& ledger) const;
  // Tokens that share scales, counted from the first: 1 where each has its own, 0 where all do.
  std::int32_t unit() const noexcept;
  // The tokens at these indices (increasing), bit for bit: whole units, but for the end of the last.
  std::shared_ptr<const CodedSide> select(std::span<const std::int32_t> tokens,
                                          const std::shared_ptr<Ledger>& ledger) const;

  // Whether the tokens of `next` can follow the first `tokens` of this side in one: the same codes
  // for the same heads, residual norms in both or in neither, and no scale that would have to cover
  // tokens of both.
  bool joins(std::int32_t tokens, const CodedSide& next) const noexcept;
  // The first `tokens` of this side and the first `next_tokens` of `next`, bit for bit. Only where
  // joins() says so.
  std::shared_ptr<const CodedSide> joined(std::int32_t tokens, const CodedSide& next,
                                          std::int32_t next_tokens,
                                          const std::shared_ptr<Ledger>& ledger) const;

  std::int32_t tokens() const noexcept { return tokens_; }  // as encoded
  std::span<const Part> parts() const noexcept { return parts_; }
  const Part& part(std::int32_t head) const noexcept {
    const auto h = static_cast<std::size_t>(head);
    if (parts_.size() == part_of_head_.size()) return parts_[h];  // a code per head
    return parts_[parts_.size() == 1 ? 0 : part_of_head_[h]];
  }

  // The highest rank among the codes.
  std::int32_t highest_rank() const noexcept { return highest_rank_; }

  // Rows first .. first + n - 1 of a head as attention sees them, into out [n, dim]: the plain
  // reference of reading. `positions` are the segment's.
  void reconstruct(std::int32_t head, const Positions& positions, std::int32_t first,
                   TensorView<float, 2> out) const;

  // >= |x - x^|_2 of a token and head, quantization included, x^ as reconstruct gives it and x the
  // row as attention sees it; exceeds it by less than 1 %. Measured directly at encoding: the
  // energy identity |x|^2 - |c|^2 cancels, and holds for neither quantized coefficients
  // nor transforms that are not orthonormal. Only with has_residuals().
  float residual(std::int32_t head, std::int32_t token) const noexcept;
  bool has_residuals() const noexcept { return residuals_.bytes() > 0; }

  std::size_t coefficient_bytes() const noexcept;
  std::size_t scale_bytes() const noexcept;
  std::size_t residual_bytes() const noexcept { return residuals_.bytes(); }

 private:
  friend struct CodedSideBytes;  // cache/code/coded_side_bytes.h
  CodedSide() = default;
  Status add_code(const std::shared_ptr<const Code>& code, bool keys, std::size_t dim);
  static Status store(Part& part, TensorView<const float, 2> coefficients,
                      const std::shared_ptr<Ledger>& ledger);
  Status encode_part(const SideRows& rows, Part& part, const std::shared_ptr<Ledger>& ledger);
  void measure(const SideRows& rows, const std::shared_ptr<Ledger>& ledger);

  std::int32_t tokens_ = 0;
  std::int32_t highest_rank_ = 0;
  std::vector<Part> parts_;
  std::vector<std::size_t> part_of_head_;
  Buffer residuals_;  // bfloat16 rounded up, [heads][tokens]
};

}  // namespace kvspan
