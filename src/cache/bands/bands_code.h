// SPDX-License-Identifier: Apache-2.0
// The code of bands: the learned directions as a transform, each component with
// its own number of bits. The vector is z = [x_k ; x_v] of all heads of a group, or one of the two:
//     x_k = Rot(t - t_a)(k0 - mu)    anchored keys; or k - mu, the key after RoPE (no anchor); or
//                                    k0 - mu, the key before RoPE, which readers must rebuild
//     x_v = v - m
//     c = A z, z^ = B c^             A [C, D], B [D, C]; only components with bits are kept
//     c^_i = g step_i (v_i + 1/2)    v_i: what code i stands for, itself or by a trellis; g the
//                                    token's gain (codec/token_gain.h), in 8 bits
//                                    (codec/bands/midrise.h); or 1
// so that k = R(t_a)(x_k + Rot(t - t_a) mu) and v = x_v + m. Scores use the key rows of B, values
// leave through the value rows: one unpacking serves both.
// C is D, or more where layers are coded together: then each has a code with its own rows of B and the same components, and c
// is the sum of what they make of their rows.
// Where the metric M is known by which errors count, A = B'M, and only B and M are held.
// B is held in f16, each row in a power of two of its own, in which its largest number is in
// [1, 2): B is M^-1/2 U with orthonormal U, so that rows are as large as the metric says (their
// largest numbers 0.85 to 713 in the layers of SmolLM2, more where a layer hardly counts) and would
// leave the range of f16 sooner or later, while columns are alike. A number is off by at most 2^-11
// of itself or 2^-25 of its row's largest. It is rounded once, when the code is made: all that
// reads B, the analysis included, reads the rounded numbers. Immutable; shared by all sequences of
// a model, or learnt from one and that one's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/half.h"
#include "base/memory.h"
#include "cache/bands/anchored_means.h"
#include "cache/rope.h"
#include "codec/bands/bands_pack.h"
#include "codec/bands/midrise.h"
#include "codec/token_gain.h"
#include "kvspan/cache.h"
#include "kvspan/result.h"
#include "kvspan/tensor_view.h"

namespace kvspan {

class ByteReader;
class ByteWriter;

// What a digit of 8 bits counts beside the next.
inline constexpr float kDigitBase = 128.0f;

// What a code is made of; copied.
struct BandsParts {
  std::int32_t heads = 1;
  std::int32_t key_dim = 0;    // 0: no keys in z
  std::int32_t value_dim = 0;  // 0: no values in z
  // Positions that share an anchor, a multiple of 16; 0: keys after RoPE, or before it.
  std::int32_t anchor_block = 0;
  bool before_rope = false;
  Rope rope;                          // of keys that are not coded after RoPE
  std::span<const float> key_mean;    // [heads * key_dim]
  std::span<const float> value_mean;  // [heads * value_dim]
  std::int32_t components = 0;  // C; 0: as many as z has numbers
  // [C, D], a row for each component; unused where the metric is given.
  TensorView<const float, 2> analysis;
  TensorView<const float, 2> synthesis;  // [D, C], a column for each component
  std::span<const std::uint8_t> bits;    // [C], 0 to 6 or 8
  std::span<const float> steps;          // [C], for c / g, of the widths that the layout gives
  std::span<const float> sigma;          // [C], root mean square of c
  bool gain = true;
  BandsQuantizer quantizer = BandsQuantizer::kUniform;
  // [D], above 0: the diagonal of the metric, from which and B the analysis follows; empty: that is
  // given.
  std::span<const float> weights = {};
  // [heads][dim^2], symmetric, with weights: the metric of a side that is not diagonal.
  std::span<const float> key_blocks = {}, value_blocks = {};

  std::size_t all_components() const noexcept {
    return static_cast<std::size_t>(components > 0 ? components : heads * (key_dim + value_dim));
  }
};

class BandsCode {
 public:
  // Fails, naming what is wrong, on shapes that do not fit, numbers that are not finite, or where
  // no component has bits.
  static Result<std::shared_ptr<const BandsCode>> create(const BandsParts& parts,
                                                         const std::shared_ptr<Ledger>& ledger,
                                                         MemoryKind kind = MemoryKind::kShared);

  std::int32_t heads() const noexcept { return heads_; }
  std::int32_t key_dim() const noexcept { return key_dim_; }
  std::int32_t value_dim() const noexcept { return value_dim_; }
  std::int32_t key_width() const noexcept { return heads_ * key_dim_; }
  std::int32_t width() const noexcept { return heads_ * (key_dim_ + value_dim_); }  // D
  bool gain() const noexcept { return gain_; }
  const Rope& rope() const noexcept { return rope_; }
  const BandsLayout& layout() const noexcept { return layout_; }
  // Places of the layout, empty ones included: 4 quads().
  std::int32_t places() const noexcept { return places_; }
  // Neighbouring quads that share a scale of a rounded query: those whose steps are alike, at most
  // kMostRanges, and as many rests. Usually that is all: where bits are spent best, every component is off by about
  // as much; but the strongest are, where they have all the bits that there are, by more.
  static constexpr std::size_t kMostRanges = 8;
  struct ScaleRange {
    std::int32_t first_quad, quads;
    bool small = false;  // products of a token's codes with bytes sum to less than 2^22
    // Quads of its own it has none, but what rounding has left of the first ones of the range after it, in the scale
    // of that over kDigitBase: of the widest codes of a fine() code.
    bool rest = false;
  };
  std::span<const ScaleRange> scale_ranges() const noexcept { return ranges_; }
  // [places], 0 at empty ones.
  const float* steps() const noexcept { return steps_.as<float>(); }

  std::int32_t anchor_block() const noexcept { return anchor_block_; }
  bool before_rope() const noexcept { return before_rope_; }
  // 0 where keys are coded after RoPE, or before it.
  std::int32_t anchor_of(std::int32_t position) const noexcept {
    return anchor_block_ == 0 ? 0 : anchor_position(position, anchor_block_);
  }
  const float* key_mean(std::int32_t head) const noexcept {
    return key_mean_.as<float>() + static_cast<std::ptrdiff_t>(head) * key_dim_;
  }
  // x_k of one head to the key after RoPE, in place.
  void to_key(std::int32_t head, std::int32_t position, float* x) const noexcept;
  // The mean of keys as queries meet it; empty where there are no anchors.
  const AnchoredMeans& anchored_means() const noexcept { return anchored_means_; }
  const float* value_mean(std::int32_t head) const noexcept {
    return value_mean_.as<float>() + static_cast<std::ptrdiff_t>(head) * value_dim_;
  }
  // The key rows of B of one head times the steps, as integer products take them: places in tiles
  // of 16, [place_tiles][dim_quads][16 places][4 dims], each number the nearest of 255 that
  // key_scales, [16 place_tiles], tells for its place. Off by at most half of its place's scale,
  // of which digit 1, where there is one, has the nearest of kDigitBase parts. None where keys are
  // coded before RoPE.
  const std::int8_t* key_tiles(std::int32_t head, std::int32_t digit = 0) const noexcept {
    return key_tiles_.as<std::int8_t>() +
           static_cast<std::ptrdiff_t>(digit * heads_ + head) * place_tiles() * dim_quads() * 64;
  }
  const float* key_scales(std::int32_t head) const noexcept {
    return key_scales_.as<float>() + static_cast<std::ptrdiff_t>(head) * place_tiles() * 16;
  }
  // Codes have so many bits that what rounding queries and weights to 8 bits leaves would count beside what they leave.
  bool fine() const noexcept { return fine_; }
  // Digits of 8 bits that a query, and each number of key_tiles, has as it is moved to coefficients.
  std::int32_t move_digits() const noexcept { return fine_ ? 2 : 1; }
  // How much an error of each number of a key counts, about: the metric that B whitens, equal
  // within the pairs that RoPE turns, so that the weighed length of an error does not depend on
  // position. [key_dim], above 0. Only certificates use it, for which any weights are right.
  const float* key_weights(std::int32_t head) const noexcept {
    return key_weights_.as<float>() + static_cast<std::ptrdiff_t>(head) * key_dim_;
  }
  // The key rows of B of one head times the steps as attention reads them, [key_dim, places]: the
  // numbers that key_tiles stand for, or where there are none as they are.
  void read_key_rows(std::int32_t head, float* to) const noexcept;
  std::int32_t place_tiles() const noexcept { return (places_ + 15) / 16; }
  std::int32_t dim_quads() const noexcept { return (key_dim_ + 3) / 4; }
  // Rows of B of one head, [dim][row_stride()], zeros from places() on: number j, p of B is
  // scales[j] times that of the row.
  struct Rows {
    const Half* numbers;
    const float* scales;  // [dim], powers of two
  };
  Rows key_rows(std::int32_t head) const noexcept { return rows(head * key_dim_); }
  Rows value_rows(std::int32_t head) const noexcept {
    return rows(key_width() + head * value_dim_);
  }
  // places() up to whole eights, as kernels take them.
  std::int32_t row_stride() const noexcept { return (places_ + 7) / 8 * 8; }
  // `count` rows of B as numbers, `stride` apart: places(), or row_stride() with zeros after them.
  void widen(const Rows& rows, std::int32_t count, std::int32_t stride, float* to) const noexcept;

  // A' [D, places], as encode applies it.
  void read_analysis(float* to) const;
  // How tokens get their gains, where they have any.
  GainRule gain_rule() const noexcept;

  // z [D] of a token from its rows as attention sees them: keys [heads][key_dim] after RoPE, values
  // [heads][value_dim]; rows are `stride` apart from head to head.
  void gather(const float* keys, const float* values, std::int32_t position,
              float* z) const noexcept;
  // Adds A z to c [count, places], z [count, D]; and z'Mz, or |A z|^2 where M is not known, to squares [count]. Tokens that
  // are coded together read B together, four at a time.
  void analyse(std::int32_t count, const float* z, float* c, double* squares) const noexcept;
  // Codes [count, places] and the gains' codes [count] of c [count, places], and what the codes stand for,
  // values [count, places].
  void quantize(std::int32_t count, const float* c, std::int8_t* codes, std::int8_t* gains,
                std::int8_t* values) const;
  // Both, of one token; work [places] becomes c.
  void encode(const float* z, std::int8_t* codes, std::int8_t* gain, float* work) const;
  // c^ [places] from what codes stand for (BandsLayout::unpack, values) and gain.
  void decode(const std::int8_t* values, std::int8_t gain, float* c) const noexcept;
  // The inverse of gather, from c^: keys [heads][key_dim] after RoPE, values [heads][value_dim].
  void restore(const float* c, std::int32_t position, float* keys, float* values) const noexcept;

  // docs/reference/formats/cache.md: what was learnt, of a code that has weights. `like` tells all
  // the rest: heads, dimensions, anchors, RoPE and whether tokens have gains. What loads reads,
  // codes and saves as the saved one did, bit for bit, and is safe to go on with, forged or not.
  void save(ByteWriter& out) const;
  static Result<std::shared_ptr<const BandsCode>> load(const BandsParts& like, ByteReader& in,
                                                       const std::shared_ptr<Ledger>& ledger);
  // The same of a code that was designed from a calibration and is shared: its metric need not be
  // diagonal (docs/reference/formats/codes.md).
  void save_designed(ByteWriter& out) const;
  static Result<std::shared_ptr<const BandsCode>> load_designed(
      const BandsParts& like, ByteReader& in, const std::shared_ptr<Ledger>& ledger);

  // Of all that decides how bytes are read.
  std::uint64_t checksum() const noexcept { return checksum_; }

  MemoryKind memory_kind() const noexcept { return kind_; }
  std::size_t bytes() const noexcept;

 private:
  BandsCode() = default;
  static Result<std::shared_ptr<BandsCode>> build(const BandsParts& parts,
                                                  const std::shared_ptr<Ledger>& ledger,
                                                  MemoryKind kind);
  Status store(const BandsParts& parts, const std::shared_ptr<Ledger>& ledger);
  Status store_synthesis(const BandsParts& parts, const std::shared_ptr<Ledger>& ledger);
  void store_metric(const BandsParts& parts, const std::shared_ptr<Ledger>& ledger);
  Rows rows(std::int32_t first) const noexcept {
    return {synthesis_.as<Half>() + static_cast<std::ptrdiff_t>(first) * row_stride(),
            row_scales_.as<float>() + first};
  }
  float weighed(std::int32_t row, const float* z) const noexcept;
  void quantize_token(const float* c, std::int8_t* codes, std::int8_t* values, std::int8_t* gain) const;
  void make_scale_ranges();
  void store_key_tiles(const std::shared_ptr<Ledger>& ledger);
  void store_key_weights(const BandsParts& parts);
  std::uint64_t compute_checksum() const;
  void save_common(ByteWriter& out) const;
  static Result<std::shared_ptr<BandsCode>> load_common(BandsParts parts, bool designed,
                                                        ByteReader& in,
                                                        const std::shared_ptr<Ledger>& ledger);
  void find_path(const float* c, float factor, std::int8_t* codes, std::int8_t* values) const;

  std::int32_t heads_ = 1, key_dim_ = 0, value_dim_ = 0, anchor_block_ = 0, places_ = 0, components_ = 0;
  bool gain_ = true, before_rope_ = false;
  std::uint64_t checksum_ = 0;
  Rope rope_;
  BandsLayout layout_;
  std::vector<ScaleRange> ranges_;
  MemoryKind kind_ = MemoryKind::kShared;
  Buffer analysis_;                   // A' [D, places], or none
  Buffer weights_;                    // [D], where A' = M B
  Buffer key_blocks_, value_blocks_;  // [heads][dim^2], where M is not diagonal
  Buffer synthesis_, row_scales_;     // B in f16 [D, row_stride], [D]
  Buffer steps_, inverse_steps_, lowest_, highest_, inverse_sigma_, reach_;  // [places]
  float fine_error_ = 0.0f;  // see GainRule
  bool fine_ = false;
  Buffer key_tiles_, key_scales_, key_weights_;
  Buffer key_mean_, value_mean_;  // [heads * dim]
  AnchoredMeans anchored_means_;
};

}  // namespace kvspan
