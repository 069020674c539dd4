// SPDX-License-Identifier: Apache-2.0
// How a code of bands is made of its parts.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "base/byte_stream.h"
#include "base/fail.h"
#include "cache/bands/bands_code.h"
#include "cache/rows/narrow.h"
#include "cache/segments/segment.h"

namespace kvspan {
namespace {

// Of the diagonal, which has the keys' weights first, and of blocks.
Status check_metric(const BandsParts& parts, std::size_t keys) {
  for (std::size_t i = 0; i < parts.weights.size(); ++i) {
    if (!(i < keys ? parts.key_blocks : parts.value_blocks).empty()) continue;
    if (!(parts.weights[i] > 0.0f) || !std::isfinite(parts.weights[i])) {
      return fail(ErrorCode::kInvalidArgument, "bands code: a weight is {}; allowed: above 0",
                  parts.weights[i]);
    }
  }
  for (const auto& [blocks, dim] : {std::pair(parts.key_blocks, parts.key_dim),
                                    std::pair(parts.value_blocks, parts.value_dim)}) {
    const auto wanted = static_cast<std::size_t>(parts.heads) * static_cast<std::size_t>(dim) *
                        static_cast<std::size_t>(dim);
    if (blocks.empty()) continue;
    if (parts.weights.empty() || blocks.size() != wanted ||
        !std::all_of(blocks.begin(), blocks.end(), [](float x) { return std::isfinite(x); })) {
      return fail(ErrorCode::kInvalidArgument,
                  "bands code: a metric of {} numbers beside {} weights; allowed: {} finite "
                  "numbers beside weights",
                  blocks.size(), parts.weights.size(), wanted);
    }
  }
  return {};
}

Status check(const BandsParts& parts) {
  const auto fails = [](const char* what, std::size_t found, std::size_t wanted) {
    return fail(ErrorCode::kInvalidArgument, "bands code: {} has {} numbers instead of {}", what,
                found, wanted);
  };
  if (parts.heads < 1 || parts.key_dim < 0 || parts.value_dim < 0 ||
      parts.key_dim + parts.value_dim == 0) {
    return fail(ErrorCode::kInvalidArgument, "bands code of {} heads, key_dim {}, value_dim {}",
                parts.heads, parts.key_dim, parts.value_dim);
  }
  const auto h = static_cast<std::size_t>(parts.heads);
  const std::size_t keys = h * static_cast<std::size_t>(parts.key_dim);
  const std::size_t values = h * static_cast<std::size_t>(parts.value_dim), d = keys + values;
  const std::size_t c = parts.all_components();
  if (c < d) return fails("the set of components", c, d);
  if (parts.key_mean.size() != keys) return fails("the key mean", parts.key_mean.size(), keys);
  if (parts.value_mean.size() != values) {
    return fails("the value mean", parts.value_mean.size(), values);
  }
  for (const auto& [name, matrix, rows, columns] :
       {std::tuple("analysis", parts.analysis, c, d), std::tuple("synthesis", parts.synthesis, d, c)}) {
    if (matrix.data == parts.analysis.data && !parts.weights.empty()) continue;
    if (matrix.shape[0] != rows || matrix.shape[1] != columns) {
      return fail(ErrorCode::kInvalidArgument, "bands code: {} is {} x {} instead of {} x {}", name,
                  matrix.shape[0], matrix.shape[1], rows, columns);
    }
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        if (!std::isfinite(matrix.row(i)[j])) {
          return fail(ErrorCode::kInvalidArgument, "bands code: {} has {} at row {}, column {}",
                      name, matrix.row(i)[j], i, j);
        }
      }
    }
  }
  if (parts.bits.size() != c) return fails("bits", parts.bits.size(), c);
  if (parts.steps.size() != c) return fails("steps", parts.steps.size(), c);
  if (parts.sigma.size() != c) return fails("sigma", parts.sigma.size(), c);
  if (!parts.weights.empty() && parts.weights.size() != d) {
    return fails("weights", parts.weights.size(), d);
  }
  KVSPAN_CHECK_OK(check_metric(parts, keys));
  if (parts.anchor_block < 0 || parts.anchor_block % static_cast<int>(kBandTokens) != 0) {
    return fail(ErrorCode::kInvalidArgument,
                "bands code: anchor block of {} positions; allowed: multiples of {}, or 0",
                parts.anchor_block, kBandTokens);
  }
  if (parts.before_rope && parts.anchor_block > 0) {
    return fail(ErrorCode::kInvalidArgument, "bands code: keys before RoPE have no anchors");
  }
  return {};
}

// The power of two that a row of B is held in: `most` over it is in [1, 2), rounded to f16 or not,
// so that a rounded row has the same one. Infinite where that is beyond f32; not below 2^-100, so
// that all numbers of f16 times it are in f32.
float row_scale(float most) {
  if (!(most > 0.0f)) return 1.0f;
  const int exponent = std::max(std::ilogb(most), -100);
  const bool rounds_to_2 = to_float(to_half(std::scalbn(most, -exponent))) == 2.0f;
  return std::scalbn(1.0f, exponent + (rounds_to_2 ? 1 : 0));
}

// Quads whose steps are compared with those of a range at once, and how far apart they may be.
constexpr std::int32_t kRangePart = 16;
constexpr double kAlike = 2.5;
// Bits a component from which on a code is fine(): below, what coding leaves is far larger than what one digit does.
constexpr double kFineBits = 3.25;
// From this width on, half a unit of a query's digit counts beside half a step of a code.
constexpr std::uint8_t kWideBits = 8;

}  // namespace

Result<std::shared_ptr<const BandsCode>> BandsCode::create(const BandsParts& parts,
                                                           const std::shared_ptr<Ledger>& ledger,
                                                           MemoryKind kind) {
  KVSPAN_TRY(std::shared_ptr<BandsCode> code, build(parts, ledger, kind));
  return std::shared_ptr<const BandsCode>(std::move(code));
}

Result<std::shared_ptr<BandsCode>> BandsCode::build(const BandsParts& parts,
                                                    const std::shared_ptr<Ledger>& ledger,
                                                    MemoryKind kind) {
  KVSPAN_CHECK_OK(check(parts));
  if ((parts.anchor_block > 0 || parts.before_rope) && parts.key_dim > 0) {
    KVSPAN_CHECK_OK(check_rope(parts.rope, parts.key_dim));
  }
  std::shared_ptr<BandsCode> code(new BandsCode);
  KVSPAN_TRY(code->layout_, BandsLayout::create(parts.bits, parts.quantizer));
  if (code->layout_.stored() == 0) {
    return fail(ErrorCode::kInvalidArgument, "bands code: no component has bits");
  }
  for (std::size_t i = 0; i < code->layout_.stored(); ++i) {
    const float step = parts.steps[code->layout_.order()[i]];
    if (!(step > 0.0f) || !std::isfinite(step)) {
      return fail(ErrorCode::kInvalidArgument, "bands code: component {} has {} bits and step {}",
                  code->layout_.order()[i], code->layout_.width(i), step);
    }
  }
  code->kind_ = kind;
  code->heads_ = parts.heads;
  code->components_ = static_cast<std::int32_t>(parts.all_components());
  code->key_dim_ = parts.key_dim;
  code->value_dim_ = parts.value_dim;
  code->anchor_block_ = parts.anchor_block;
  code->before_rope_ = parts.before_rope && parts.key_dim > 0;
  code->rope_ = parts.rope;
  code->gain_ = parts.gain;
  code->places_ = static_cast<std::int32_t>(code->layout_.quads() * kBandQuad);
  KVSPAN_CHECK_OK(code->store(parts, ledger));
  code->checksum_ = code->compute_checksum();
  return code;
}

Status BandsCode::store(const BandsParts& parts, const std::shared_ptr<Ledger>& ledger) {
  const auto d = static_cast<std::size_t>(width()), n = static_cast<std::size_t>(places_);
  const auto floats = [&](std::size_t count) {
    return Buffer(count * sizeof(float), kind_, ledger);
  };
  const bool follows = !parts.weights.empty();
  if (follows) {
    store_metric(parts, ledger);
  } else {
    analysis_ = floats(d * n);
  }
  KVSPAN_CHECK_OK(store_synthesis(parts, ledger));
  steps_ = floats(n);
  inverse_steps_ = floats(n);
  lowest_ = floats(n);
  highest_ = floats(n);
  inverse_sigma_ = floats(n);
  reach_ = floats(n);
  for (std::size_t p = 0; p < layout_.stored(); ++p) {
    const std::size_t from = layout_.order()[p];
    for (std::size_t j = 0; j < d && !follows; ++j) {
      analysis_.as<float>()[j * n + p] = parts.analysis.row(from)[j];
    }
    steps_.as<float>()[p] = parts.steps[from];
    inverse_steps_.as<float>()[p] = 1.0f / parts.steps[from];
    const float half = static_cast<float>(1 << (layout_.width(p) - 1));
    lowest_.as<float>()[p] = -half;
    highest_.as<float>()[p] = half - 1.0f;
    inverse_sigma_.as<float>()[p] = parts.sigma[from] > 0.0f ? 1.0f / parts.sigma[from] : 0.0f;
    reach_.as<float>()[p] = layout_.reach(layout_.width(p)) * parts.steps[from];
    fine_error_ += layout_.fine_error(layout_.width(p)) * parts.steps[from] * parts.steps[from];
  }
  const double tile_bits = 8.0 * static_cast<double>(layout_.tile_bytes());
  fine_ = tile_bits >= kFineBits * static_cast<double>(kBandTokens) * components_;
  make_scale_ranges();
  if (value_dim_ > 0) {
    value_mean_ = floats(parts.value_mean.size());
    std::copy(parts.value_mean.begin(), parts.value_mean.end(), value_mean_.as<float>());
  }
  if (key_dim_ == 0) return {};
  if (!before_rope_) store_key_tiles(ledger);
  key_weights_ = floats(static_cast<std::size_t>(key_width()));
  store_key_weights(parts);
  key_mean_ = floats(parts.key_mean.size());
  std::copy(parts.key_mean.begin(), parts.key_mean.end(), key_mean_.as<float>());
  if (anchor_block_ > 0) {
    anchored_means_ =
        AnchoredMeans(rope_, anchor_block_, parts.key_mean.data(), heads_, key_dim_, kind_, ledger);
  }
  return {};
}

Status BandsCode::store_synthesis(const BandsParts& parts, const std::shared_ptr<Ledger>& ledger) {
  const auto d = static_cast<std::size_t>(width()), stride = static_cast<std::size_t>(row_stride());
  synthesis_ = Buffer(d * stride * sizeof(Half), kind_, ledger);
  row_scales_ = Buffer(d * sizeof(float), kind_, ledger);
  std::vector<float> row(layout_.stored());
  for (std::size_t j = 0; j < d; ++j) {
    float most = 0.0f;
    for (std::size_t p = 0; p < row.size(); ++p) {
      row[p] = parts.synthesis.row(j)[layout_.order()[p]];
      most = std::max(most, std::abs(row[p]));
    }
    const float scale = row_scale(most);
    if (!std::isfinite(scale)) {
      return fail(ErrorCode::kInvalidArgument, "bands code: synthesis has {} in row {}", most, j);
    }
    row_scales_.as<float>()[j] = scale;
    for (float& x : row) x /= scale;
    narrow_to_half(row.data(), row.size(), synthesis_.as<Half>() + j * stride);
  }
  return {};
}

void BandsCode::store_metric(const BandsParts& parts, const std::shared_ptr<Ledger>& ledger) {
  for (const auto& [numbers, to] :
       {std::pair(parts.weights, &weights_), std::pair(parts.key_blocks, &key_blocks_),
        std::pair(parts.value_blocks, &value_blocks_)}) {
    *to = Buffer(numbers.size_bytes(), kind_, ledger);
    std::copy(numbers.begin(), numbers.end(), to->as<float>());
  }
}

void BandsCode::make_scale_ranges() {
  const auto quads = static_cast<std::int32_t>(layout_.quads());
  const auto width = [&](std::int32_t quad) {
    return layout_.width(static_cast<std::size_t>(quad) * kBandQuad);
  };
  double range_step = 0.0;  // mean step of the first part of the range
  for (std::int32_t from = 0, to = 0; from < quads; from = to) {
    for (to = from; to < quads && to < from + kRangePart && width(to) == width(from); ++to) {
    }
    const double step = std::accumulate(steps() + 4 * from, steps() + 4 * to, 0.0) / (to - from);
    const bool alike = step <= kAlike * range_step && range_step <= kAlike * step;
    if (ranges_.empty() || (!alike && ranges_.size() < kMostRanges)) {
      ranges_.push_back({from, 0});
      range_step = step;
    }
    ranges_.back().quads += to - from;
  }
  for (ScaleRange& range : ranges_) {
    std::int64_t most = 0;
    for (std::int32_t q = 0; q < range.quads; ++q) {
      most += std::int64_t{4 * 127} * layout_.largest(width(range.first_quad + q));
    }
    range.small = most < std::int64_t{1} << 22;
  }
  for (std::size_t i = 0; fine_ && i < ranges_.size(); ++i) {
    ScaleRange rest{ranges_[i].first_quad, 0, ranges_[i].small, true};
    while (rest.quads < ranges_[i].quads && width(rest.first_quad + rest.quads) >= kWideBits) ++rest.quads;
    if (rest.quads > 0) ranges_.insert(ranges_.begin() + static_cast<std::ptrdiff_t>(i++), rest);
  }
}

void BandsCode::store_key_tiles(const std::shared_ptr<Ledger>& ledger) {
  const auto heads = static_cast<std::size_t>(heads_);
  const std::int32_t quads = dim_quads();
  const std::size_t head_places = static_cast<std::size_t>(place_tiles()) * 16;
  const auto digits = static_cast<std::size_t>(move_digits());
  key_tiles_ = Buffer(digits * heads * head_places * static_cast<std::size_t>(quads) * 4, kind_, ledger);
  key_scales_ = Buffer(heads * head_places * sizeof(float), kind_, ledger);
  std::fill_n(key_tiles_.as<std::int8_t>(), key_tiles_.bytes(), std::int8_t{0});
  std::fill_n(key_scales_.as<float>(), heads * head_places, 0.0f);
  std::vector<float> rows(static_cast<std::size_t>(key_dim_) * static_cast<std::size_t>(places_));
  for (std::int32_t h = 0; h < heads_; ++h) {
    widen(key_rows(h), key_dim_, places_, rows.data());
    auto* tiles = const_cast<std::int8_t*>(key_tiles(h));
    auto* rest = const_cast<std::int8_t*>(key_tiles(h, move_digits() - 1));
    auto* scales = const_cast<float*>(key_scales(h));
    for (std::int32_t p = 0; p < places_; ++p) {
      const float* column = rows.data() + p;
      float most = 0.0f;
      for (std::int32_t j = 0; j < key_dim_; ++j) {
        most = std::max(most, std::abs(column[static_cast<std::ptrdiff_t>(j) * places_]));
      }
      if (!(most > 0.0f)) continue;
      scales[p] = most / 127.0f * steps()[p];
      for (std::int32_t j = 0; j < key_dim_; ++j) {
        const float x = column[static_cast<std::ptrdiff_t>(j) * places_] / most * 127.0f;
        const std::ptrdiff_t at =
            ((static_cast<std::ptrdiff_t>(p / 16) * quads + j / 4) * 16 + p % 16) * 4 + j % 4;
        tiles[at] = static_cast<std::int8_t>(std::nearbyint(x));
        if (fine_) rest[at] = static_cast<std::int8_t>(std::nearbyint((x - tiles[at]) * kDigitBase));
      }
    }
  }
}

// B = M^-1/2 U with orthonormal U, so that squares of B's rows, over all components, are the
// diagonal of M^-1, unless M is known.
void BandsCode::store_key_weights(const BandsParts& parts) {
  const auto components = static_cast<std::size_t>(components_);
  const std::size_t half = parts.rope.angles.size();
  float* const weights = key_weights_.as<float>();
  double most = 0.0;
  const bool known = !parts.weights.empty() && parts.key_blocks.empty();
  std::vector<double> inverse(static_cast<std::size_t>(key_width()));
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    for (std::size_t p = 0; p < components && !known; ++p) {
      inverse[i] += double{parts.synthesis.row(i)[p]} * double{parts.synthesis.row(i)[p]};
    }
    if (known) inverse[i] = 1.0 / double{parts.weights[i]};
    most = std::max(most, inverse[i]);
  }
  for (std::size_t base = 0; base < inverse.size(); base += static_cast<std::size_t>(key_dim_)) {
    for (std::size_t i = 0; i < half && (anchor_block_ > 0 || before_rope_); ++i) {
      const bool neighbours = parts.rope.pairs == Rope::Pairs::kNeighbours;
      double& a = inverse[base + (neighbours ? 2 * i : i)];
      double& b = inverse[base + (neighbours ? 2 * i + 1 : i + half)];
      a = b = 0.5 * (a + b);
    }
  }
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    weights[i] = most > 0.0 ? static_cast<float>(1.0 / std::max(inverse[i], 1e-6 * most)) : 1.0f;
  }
}

std::uint64_t BandsCode::compute_checksum() const {
  ByteWriter all;
  for (const std::int32_t number :
       {heads_, key_dim_, value_dim_, before_rope_ ? -1 : anchor_block_, places_}) {
    all.put(number);
  }
  all.put(static_cast<std::uint8_t>(gain_));
  all.put(static_cast<std::uint8_t>(layout_.quantizer()));
  for (std::size_t i = 0; i < layout_.stored(); ++i) {
    all.put(static_cast<std::int32_t>(layout_.width(i)));
  }
  for (const Buffer* part : {&synthesis_, &row_scales_, &steps_, &key_mean_, &value_mean_}) {
    all.put_bytes({part->data(), part->bytes()});
  }
  return crc64(all.bytes());
}

}  // namespace kvspan
