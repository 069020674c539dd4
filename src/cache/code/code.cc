// SPDX-License-Identifier: Apache-2.0
#include "cache/code/code.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "cache/rope.h"
#include "cache/segments/segment.h"

namespace kvspan {
namespace {

bool is_key(Domain domain) {
  return domain != Domain::kValue;
}

Status check_shapes(const CodeParts& parts) {
  if (parts.heads < 1 || parts.dim < 1) {
    return fail(ErrorCode::kInvalidArgument, "a code of {} heads with {} dimensions", parts.heads,
                parts.dim);
  }
  const auto width = static_cast<std::size_t>(parts.heads) * static_cast<std::size_t>(parts.dim);
  const std::size_t rank = parts.analysis.shape[0];
  if (rank < 1 || rank > width) {
    return fail(ErrorCode::kInvalidArgument, "rank {} of a code; allowed: 1 to {}", rank, width);
  }
  if (parts.analysis.data == nullptr || parts.analysis.shape[1] != width) {
    return fail(ErrorCode::kInvalidArgument, "analysis of {} columns; rows have {} numbers",
                parts.analysis.shape[1], width);
  }
  if (parts.synthesis.data != nullptr &&
      (parts.synthesis.shape[0] != width || parts.synthesis.shape[1] != rank)) {
    return fail(ErrorCode::kInvalidArgument, "synthesis is {} x {}; it has to be {} x {}",
                parts.synthesis.shape[0], parts.synthesis.shape[1], width, rank);
  }
  if (!parts.mean.empty() && parts.mean.size() != width) {
    return fail(ErrorCode::kInvalidArgument, "mean of {} numbers; rows have {}", parts.mean.size(),
                width);
  }
  const bool anchored = parts.domain == Domain::kAnchoredKey;
  if (anchored ? parts.anchor_block < 1 : parts.anchor_block != 0) {
    return fail(ErrorCode::kInvalidArgument,
                "anchor block of {} positions; allowed: 1 or more for anchored keys, else 0",
                parts.anchor_block);
  }
  if (!std::isfinite(parts.gamma) || (!is_key(parts.domain) && parts.gamma != 1.0f)) {
    return fail(ErrorCode::kInvalidArgument, "gamma {}; allowed: finite, and 1 for values",
                parts.gamma);
  }
  return {};
}

Status check_finite(const TensorView<const float, 2>& matrix, const char* name) {
  for (std::size_t i = 0; i < matrix.shape[0]; ++i) {
    for (std::size_t j = 0; j < matrix.shape[1]; ++j) {
      if (!std::isfinite(matrix.row(i)[j])) {
        return fail(ErrorCode::kInvalidArgument, "{} of a code: {} at row {}, column {}", name,
                    matrix.row(i)[j], i, j);
      }
    }
  }
  return {};
}

// |AB - I|_F of A^T and B, [width, rank] each.
Result<double> check_inverse(const float* a, const float* b, std::size_t width, std::size_t rank,
                             double tolerance) {
  std::vector<double> product(rank * rank);
  for (std::size_t k = 0; k < width; ++k, a += rank, b += rank) {
    for (std::size_t i = 0; i < rank; ++i) {
      for (std::size_t j = 0; j < rank; ++j) product[i * rank + j] += double{a[i]} * double{b[j]};
    }
  }
  double sum = 0.0;
  for (std::size_t i = 0; i < rank; ++i) {
    for (std::size_t j = 0; j < rank; ++j) {
      const double off = std::abs(product[i * rank + j] - (i == j ? 1.0 : 0.0));
      sum += off * off;
      if (!(off <= tolerance)) {
        return fail(ErrorCode::kInvalidArgument,
                    "analysis times synthesis is off the identity by {:.3g} at row {}, column {}; "
                    "allowed: {:g}",
                    off, i, j, tolerance);
      }
    }
  }
  return std::sqrt(sum);
}

}  // namespace

Code::Code(const CodeParts& parts, Codec codec)
    : domain_(parts.domain),
      heads_(parts.heads),
      dim_(parts.dim),
      rank_(static_cast<std::int32_t>(parts.analysis.shape[0])),
      anchor_block_(parts.anchor_block),
      gamma_(parts.gamma),
      rope_(parts.rope),
      codec_(std::move(codec)) {}

Result<std::shared_ptr<const Code>> Code::create(const CodeParts& parts,
                                                 const std::shared_ptr<Ledger>& ledger,
                                                 MemoryKind kind) {
  KVSPAN_CHECK_OK(check_shapes(parts));
  if (parts.domain == Domain::kPreRopeKey || parts.domain == Domain::kAnchoredKey) {
    KVSPAN_CHECK_OK(check_rope(parts.rope, parts.dim));
  }
  KVSPAN_CHECK_OK(check_finite(parts.analysis, "analysis"));
  if (parts.synthesis.data != nullptr) KVSPAN_CHECK_OK(check_finite(parts.synthesis, "synthesis"));
  if (!parts.mean.empty()) {
    KVSPAN_CHECK_OK(check_finite({parts.mean.data(), {1, parts.mean.size()}}, "mean"));
  }
  if (parts.store != BasisStore::kF32 && parts.synthesis.data != nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                "a narrow basis with a synthesis of its own; allowed: orthonormal ones");
  }
  KVSPAN_TRY(Codec codec, Codec::create(parts.codec, parts.analysis.shape[0]));
  std::shared_ptr<Code> code(new Code(parts, std::move(codec)));
  code->kind_ = kind;
  KVSPAN_CHECK_OK(code->store(parts, ledger));
  return std::shared_ptr<const Code>(std::move(code));
}

Status Code::store(const CodeParts& parts, const std::shared_ptr<Ledger>& ledger) {
  const auto d = static_cast<std::size_t>(width()), r = static_cast<std::size_t>(rank_);
  const bool own_synthesis = parts.synthesis.data != nullptr;
  std::vector<float> analysis(d * r), synthesis(own_synthesis ? d * r : 0);
  for (std::size_t j = 0; j < d; ++j) {
    for (std::size_t i = 0; i < r; ++i) {
      analysis[j * r + i] = parts.analysis.row(i)[j];
      if (own_synthesis) synthesis[j * r + i] = parts.synthesis.row(j)[i];
    }
  }
  if (own_synthesis) {
    analysis_ = BasisMatrix(BasisStore::kF32, d, r, analysis.data(), {}, kind_, ledger);
  } else {
    synthesis = analysis;
  }
  synthesis_ = BasisMatrix(parts.store, d, r, synthesis.data(), parts.store_scales, kind_, ledger);
  if (parts.store != BasisStore::kF32) analysis = synthesis = synthesis_.decoded();
  KVSPAN_TRY(inverse_error_, check_inverse(analysis.data(), synthesis.data(), d, r,
                                           kInverseTolerance[static_cast<int>(parts.store)]));
  const auto squares = [](const float* from, std::size_t count) {
    double sum = 0.0;
    for (std::size_t i = 0; i < count; ++i) sum += double{from[i]} * double{from[i]};
    return sum;
  };
  analysis_norm_ = std::sqrt(squares(analysis.data(), d * r));
  const std::size_t head = static_cast<std::size_t>(dim_) * r;
  for (std::int32_t h = 0; h < heads_; ++h) {
    synthesis_norms_.push_back(
        std::sqrt(squares(synthesis.data() + static_cast<std::size_t>(h) * head, head)));
  }
  if (parts.mean.empty()) return {};
  mean_ = Buffer(d * sizeof(float), kind_, ledger);
  std::copy(parts.mean.begin(), parts.mean.end(), mean_.as<float>());
  if (domain_ != Domain::kAnchoredKey) return {};
  const auto stride = static_cast<std::size_t>(table_stride());
  const auto n = static_cast<std::size_t>(anchor_block_);
  turned_means_ =
      Buffer(static_cast<std::size_t>(heads_) * n * stride * sizeof(float), kind_, ledger);
  float* to = turned_means_.as<float>();
  for (std::int32_t h = 0; h < heads_; ++h) {
    for (std::int32_t i = 0; i < anchor_block_; ++i, to += stride) {
      std::copy_n(mean(h), dim_, to);
      rope_offset(rope_, i - anchor_of(i), to);
    }
  }
  return {};
}

const float* Code::mean(std::int32_t head) const noexcept {
  return mean_.bytes() == 0 ? nullptr
                            : mean_.as<float>() + static_cast<std::ptrdiff_t>(head) * dim_;
}

const float* Code::synthesis(std::int32_t head) const noexcept {
  if (synthesis_.store() != BasisStore::kF32) return nullptr;
  return synthesis_.floats() + static_cast<std::ptrdiff_t>(head) * dim_ * rank_;
}

std::int32_t Code::table_stride() const noexcept {
  return padded_dim(dim_);
}

const float* Code::turned_mean(std::int32_t head, std::int32_t position) const noexcept {
  if (turned_means_.bytes() == 0) return nullptr;
  const std::ptrdiff_t row =
      static_cast<std::ptrdiff_t>(head) * anchor_block_ + position % anchor_block_;
  return turned_means_.as<float>() + row * table_stride();
}

void Code::analyse(const float* x, float* c) const noexcept {
  std::fill_n(c, rank_, 0.0f);
  (orthonormal() ? synthesis_ : analysis_).add_rows(0, static_cast<std::size_t>(width()), x, c);
}

void Code::analyse_transposed(const float* c, float* x) const noexcept {
  (orthonormal() ? synthesis_ : analysis_).dot_rows(0, static_cast<std::size_t>(width()), c, x);
}

void Code::synthesise(std::int32_t head, const float* c, float* x) const noexcept {
  const auto dim = static_cast<std::size_t>(dim_);
  synthesis_.dot_rows(static_cast<std::size_t>(head) * dim, dim, c, x);
}

void Code::project(std::int32_t head, const float* x, float* c) const noexcept {
  const auto dim = static_cast<std::size_t>(dim_);
  std::fill_n(c, rank_, 0.0f);
  synthesis_.add_rows(static_cast<std::size_t>(head) * dim, dim, x, c);
}

}  // namespace kvspan
