// SPDX-License-Identifier: Apache-2.0
// A code: how the rows of one KV head, or of several heads joined, become coefficients and rows
// again. D = heads * dim numbers of a token form one vector x.
//     c  = A (x - mean)        analysis A [r, D]
//     x^ = mean + B c          synthesis B [D, r]; an orthonormal basis is the case B = A^T
// What x is, the domain says; R is the rope, mu the mean:
//     post-RoPE key   k, as attention sees it
//     pre-RoPE key    k0, k = R(t) k0; the mean is of k0
//     anchored key    Rot(t - t_a)(k0 - mu), t_a the middle of the token's block of n positions:
//                     k = R(t_a) x + R(t) mu; A and B act without a mean of their own
//     value           v
// Immutable; shared by segments, forks and, when made with MemoryKind::kShared, by sequences. Every
// byte is on the ledger given at creation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "cache/code/basis_matrix.h"
#include "cache/rope.h"
#include "codec/codec.h"
#include "kvspan/cache.h"
#include "kvspan/result.h"
#include "kvspan/tensor_view.h"

namespace kvspan {

enum class Domain : std::uint8_t { kPostRopeKey, kPreRopeKey, kAnchoredKey, kValue };

// What a code is made of; copied by Code::create.
struct CodeParts {
  Domain domain = Domain::kValue;
  std::int32_t heads = 1;                // joined: their rows lie one after the other in x
  std::int32_t dim = 0;                  // of one head
  std::int32_t anchor_block = 0;         // n > 0 for anchored keys, otherwise 0
  Rope rope;                             // of pre-RoPE and anchored keys
  std::span<const float> mean;           // [D], or empty: none
  TensorView<const float, 2> analysis;   // [r, D]
  TensorView<const float, 2> synthesis;  // [D, r]; no data: the transpose of the analysis
  BasisStore store = BasisStore::kF32;   // narrower ones only without a synthesis
  std::span<const float> store_scales;   // [r] of an int8 basis that was saved; empty: made
  CodecSpec codec;
  float gamma = 1.0f;  // keys: scores of this code are multiplied by it
};

class Code {
 public:
  // How far AB may be off the identity, rounded as it is stored: f32, f16, int8.
  static constexpr double kInverseTolerance[] = {1e-4, 1.5e-3, 0.25};

  // Fails, naming what is wrong, on shapes that do not fit, numbers that are not finite, a rank
  // outside 1..D, a rope that does not fit, or a transform that is no inverse on the kept
  // components: |AB - I|_max > kInverseTolerance[store]. Cost: r^2 D. `ledger` may be null.
  static Result<std::shared_ptr<const Code>> create(const CodeParts& parts,
                                                    const std::shared_ptr<Ledger>& ledger,
                                                    MemoryKind kind = MemoryKind::kBases);

  Domain domain() const noexcept { return domain_; }
  std::int32_t heads() const noexcept { return heads_; }
  std::int32_t dim() const noexcept { return dim_; }
  std::int32_t width() const noexcept { return heads_ * dim_; }  // D
  std::int32_t rank() const noexcept { return rank_; }
  float gamma() const noexcept { return gamma_; }
  const Rope& rope() const noexcept { return rope_; }
  const Codec& codec() const noexcept { return codec_; }
  bool orthonormal() const noexcept { return analysis_.empty(); }
  const BasisMatrix& basis() const noexcept { return synthesis_; }  // B [D, r]

  // |A|_F and |AB - I|_F, for bounds.
  double analysis_norm() const noexcept { return analysis_norm_; }
  double inverse_error() const noexcept { return inverse_error_; }

  // Mean of one head [dim]; null: none.
  const float* mean(std::int32_t head) const noexcept;
  // Rows of B that make one head, [dim, r]; null where they are not stored as f32.
  const float* synthesis(std::int32_t head) const noexcept;
  // |B|_F of one head.
  double synthesis_norm(std::int32_t head) const noexcept {
    return synthesis_norms_[static_cast<std::size_t>(head)];
  }
  // A^T [D, r] where it is not B.
  const float* analysis_transposed() const noexcept { return analysis_.floats(); }

  // Anchors: the middle of the block of a position, and Rot(position - anchor) mu of one head,
  // [padded dim], neighbouring positions of a block being table_stride() apart.
  std::int32_t anchor_block() const noexcept { return anchor_block_; }
  std::int32_t anchor_of(std::int32_t position) const noexcept {
    return anchor_position(position, anchor_block_);
  }
  const float* turned_mean(std::int32_t head, std::int32_t position) const noexcept;
  std::int32_t table_stride() const noexcept;

  // c [r] = A x, x [D] without its mean.
  void analyse(const float* x, float* c) const noexcept;
  // x [D] = A^T c.
  void analyse_transposed(const float* c, float* x) const noexcept;
  // x [dim] = B_head c, without the mean.
  void synthesise(std::int32_t head, const float* c, float* x) const noexcept;
  // c [r] = B_head^T x: moves what is to be multiplied with rows of a head to where coefficients
  // are.
  void project(std::int32_t head, const float* x, float* c) const noexcept;

  MemoryKind memory_kind() const noexcept { return kind_; }
  std::size_t bytes() const noexcept {
    return analysis_.bytes() + synthesis_.bytes() + mean_.bytes() + turned_means_.bytes();
  }

 private:
  Code(const CodeParts& parts, Codec codec);
  Status store(const CodeParts& parts, const std::shared_ptr<Ledger>& ledger);

  Domain domain_;
  std::int32_t heads_;
  std::int32_t dim_;
  std::int32_t rank_;
  std::int32_t anchor_block_;
  float gamma_;
  Rope rope_;
  Codec codec_;
  double analysis_norm_ = 0.0;
  double inverse_error_ = 0.0;
  MemoryKind kind_ = MemoryKind::kBases;
  std::vector<double> synthesis_norms_;  // [heads]
  BasisMatrix analysis_;                 // A^T [D, r]; empty when it is the synthesis
  BasisMatrix synthesis_;                // B [D, r]
  Buffer mean_;                          // [D]
  Buffer turned_means_;                  // anchored with a mean: [heads][n][padded dim]
};

}  // namespace kvspan
