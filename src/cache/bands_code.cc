// SPDX-License-Identifier: Apache-2.0
#include "cache/bands_code.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/byte_stream.h"
#include "base/fail.h"
#include "cache/rope.h"
#include "cache/segment.h"

namespace kvspan {
namespace {

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
  if (parts.key_mean.size() != keys) return fails("the key mean", parts.key_mean.size(), keys);
  if (parts.value_mean.size() != values) {
    return fails("the value mean", parts.value_mean.size(), values);
  }
  for (const auto& [name, matrix] :
       {std::pair("analysis", parts.analysis), std::pair("synthesis", parts.synthesis)}) {
    if (matrix.data == parts.analysis.data && !parts.weights.empty()) continue;
    if (matrix.shape[0] != d || matrix.shape[1] != d) {
      return fail(ErrorCode::kInvalidArgument, "bands code: {} is {} x {} instead of {} x {}", name,
                  matrix.shape[0], matrix.shape[1], d, d);
    }
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t j = 0; j < d; ++j) {
        if (!std::isfinite(matrix.row(i)[j])) {
          return fail(ErrorCode::kInvalidArgument, "bands code: {} has {} at row {}, column {}",
                      name, matrix.row(i)[j], i, j);
        }
      }
    }
  }
  if (parts.bits.size() != d) return fails("bits", parts.bits.size(), d);
  if (parts.steps.size() != d) return fails("steps", parts.steps.size(), d);
  if (parts.sigma.size() != d) return fails("sigma", parts.sigma.size(), d);
  if (!parts.weights.empty() && parts.weights.size() != d) {
    return fails("weights", parts.weights.size(), d);
  }
  for (const float weight : parts.weights) {
    if (!(weight > 0.0f) || !std::isfinite(weight)) {
      return fail(ErrorCode::kInvalidArgument, "bands code: a weight is {}; allowed: above 0",
                  weight);
    }
  }
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

// to [n] += factor * from [n]
void add_scaled(float factor, const float* from, std::int32_t n, float* to) noexcept {
  for (std::int32_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

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
  code->key_dim_ = parts.key_dim;
  code->value_dim_ = parts.value_dim;
  code->anchor_block_ = parts.anchor_block;
  code->before_rope_ = parts.before_rope && parts.key_dim > 0;
  code->rope_ = parts.rope;
  code->gain_ = parts.gain;
  code->places_ = static_cast<std::int32_t>(code->layout_.quads() * kBandQuad);
  code->store(parts, ledger);
  code->checksum_ = code->compute_checksum();
  return code;
}

void BandsCode::store(const BandsParts& parts, const std::shared_ptr<Ledger>& ledger) {
  const auto d = static_cast<std::size_t>(width()), n = static_cast<std::size_t>(places_);
  const auto floats = [&](std::size_t count) {
    return Buffer(count * sizeof(float), kind_, ledger);
  };
  const bool follows = !parts.weights.empty();
  if (follows) {
    weights_ = floats(d);
    std::copy(parts.weights.begin(), parts.weights.end(), weights_.as<float>());
  } else {
    analysis_ = floats(d * n);
  }
  synthesis_ = floats(d * n);
  steps_ = floats(n);
  inverse_steps_ = floats(n);
  lowest_ = floats(n);
  highest_ = floats(n);
  inverse_sigma_ = floats(n);
  for (std::size_t p = 0; p < layout_.stored(); ++p) {
    const std::size_t from = layout_.order()[p];
    for (std::size_t j = 0; j < d; ++j) {
      if (!follows) analysis_.as<float>()[j * n + p] = parts.analysis.row(from)[j];
      synthesis_.as<float>()[j * n + p] = parts.synthesis.row(j)[from];
    }
    steps_.as<float>()[p] = parts.steps[from];
    inverse_steps_.as<float>()[p] = 1.0f / parts.steps[from];
    const float half = static_cast<float>(1 << (layout_.width(p) - 1));
    lowest_.as<float>()[p] = -half;
    highest_.as<float>()[p] = half - 1.0f;
    inverse_sigma_.as<float>()[p] = parts.sigma[from] > 0.0f ? 1.0f / parts.sigma[from] : 0.0f;
  }
  make_scale_runs();
  if (value_dim_ > 0) {
    value_mean_ = floats(parts.value_mean.size());
    std::copy(parts.value_mean.begin(), parts.value_mean.end(), value_mean_.as<float>());
  }
  if (key_dim_ == 0) return;
  if (!before_rope_) store_key_tiles(ledger);
  key_weights_ = floats(static_cast<std::size_t>(key_width()));
  store_key_weights(parts);
  mean_stride_ = padded_dim(key_dim_);
  const std::int32_t offsets = std::max(anchor_block_, 1);
  turned_means_ = floats(static_cast<std::size_t>(heads_) * static_cast<std::size_t>(offsets) *
                         static_cast<std::size_t>(mean_stride_));
  float* to = turned_means_.as<float>();
  for (std::int32_t h = 0; h < heads_; ++h) {
    for (std::int32_t i = 0; i < offsets; ++i, to += mean_stride_) {
      std::copy_n(parts.key_mean.data() + static_cast<std::ptrdiff_t>(h) * key_dim_, key_dim_, to);
      if (anchor_block_ > 0) rope_offset(rope_, i - anchor_of(i), to);
    }
  }
}

void BandsCode::make_scale_runs() {
  const auto quads = static_cast<std::int32_t>(layout_.quads());
  const auto width = [&](std::int32_t quad) {
    return layout_.width(static_cast<std::size_t>(quad) * kBandQuad);
  };
  double run_step = 0.0;  // mean step of the first width of the run
  for (std::int32_t from = 0, to = 0; from < quads; from = to) {
    for (to = from; to < quads && width(to) == width(from); ++to) {
    }
    const double step = std::accumulate(steps() + 4 * from, steps() + 4 * to, 0.0) / (to - from);
    if (runs_.empty() || step > 2.0 * run_step || run_step > 2.0 * step) {
      runs_.push_back({from, 0});
      run_step = step;
    }
    runs_.back().quads += to - from;
  }
}

void BandsCode::store_key_tiles(const std::shared_ptr<Ledger>& ledger) {
  const auto heads = static_cast<std::size_t>(heads_);
  const std::int32_t quads = dim_quads();
  const std::size_t head_places = static_cast<std::size_t>(place_tiles()) * 16;
  key_tiles_ = Buffer(heads * head_places * static_cast<std::size_t>(quads) * 4, kind_, ledger);
  key_scales_ = Buffer(heads * head_places * sizeof(float), kind_, ledger);
  std::fill_n(key_tiles_.as<std::int8_t>(), key_tiles_.bytes(), std::int8_t{0});
  std::fill_n(key_scales_.as<float>(), heads * head_places, 0.0f);
  for (std::int32_t h = 0; h < heads_; ++h) {
    auto* tiles = const_cast<std::int8_t*>(key_tiles(h));
    auto* scales = const_cast<float*>(key_scales(h));
    for (std::int32_t p = 0; p < places_; ++p) {
      const float* column = key_rows(h) + p;
      float most = 0.0f;
      for (std::int32_t j = 0; j < key_dim_; ++j) {
        most = std::max(most, std::abs(column[static_cast<std::ptrdiff_t>(j) * places_]));
      }
      if (!(most > 0.0f)) continue;
      scales[p] = most / 127.0f * steps()[p];
      for (std::int32_t j = 0; j < key_dim_; ++j) {
        const float x = column[static_cast<std::ptrdiff_t>(j) * places_] / most * 127.0f;
        tiles[((static_cast<std::ptrdiff_t>(p / 16) * quads + j / 4) * 16 + p % 16) * 4 + j % 4] =
            static_cast<std::int8_t>(std::nearbyint(x));
      }
    }
  }
}

// B = M^-1/2 U with orthonormal U, so that squares of B's rows, over all components, are the
// diagonal of M^-1, unless M is known.
void BandsCode::store_key_weights(const BandsParts& parts) {
  const auto d = static_cast<std::size_t>(width());
  const std::size_t half = parts.rope.angles.size();
  float* const weights = key_weights_.as<float>();
  double most = 0.0;
  std::vector<double> inverse(static_cast<std::size_t>(key_width()));
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    for (std::size_t p = 0; p < d && parts.weights.empty(); ++p) {
      inverse[i] += double{parts.synthesis.row(i)[p]} * double{parts.synthesis.row(i)[p]};
    }
    if (!parts.weights.empty()) inverse[i] = 1.0 / double{parts.weights[i]};
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

void BandsCode::read_key_rows(std::int32_t head, float* to) const noexcept {
  for (std::int32_t j = 0; j < key_dim_; ++j) {
    for (std::int32_t p = 0; p < places_; ++p) {
      if (before_rope_) {
        *to++ = key_rows(head)[static_cast<std::ptrdiff_t>(j) * places_ + p] * steps()[p];
        continue;
      }
      const std::ptrdiff_t quad = static_cast<std::ptrdiff_t>(p / 16) * dim_quads() + j / 4;
      *to++ = key_scales(head)[p] *
              static_cast<float>(key_tiles(head)[(quad * 16 + p % 16) * 4 + j % 4]);
    }
  }
}

void BandsCode::turn_key(std::int32_t position, float* row) const noexcept {
  if (anchor_block_ > 0) rope_rotate(rope_, anchor_of(position), row);
  if (before_rope_) rope_rotate(rope_, position, row);
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
  for (const Buffer* part : {&synthesis_, &steps_, &turned_means_, &value_mean_}) {
    all.put_bytes({part->data(), part->bytes()});
  }
  return crc64(all.bytes());
}

const float* BandsCode::turned_mean(std::int32_t head, std::int32_t position) const noexcept {
  const std::int32_t offsets = std::max(anchor_block_, 1);
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(head) * offsets +
                             (anchor_block_ > 0 ? position % anchor_block_ : 0);
  return turned_means_.as<float>() + row * mean_stride_;
}

void BandsCode::gather(const float* keys, const float* values, std::int32_t position,
                       float* z) const noexcept {
  if (key_dim_ > 0) {
    std::copy_n(keys, key_width(), z);
    for (std::int32_t h = 0; h < heads_; ++h) {
      float* x = z + static_cast<std::ptrdiff_t>(h) * key_dim_;
      if (anchor_block_ > 0) rope_unrotate(rope_, anchor_of(position), x);
      if (before_rope_) rope_unrotate(rope_, position, x);
      add_scaled(-1.0f, turned_mean(h, position), key_dim_, x);
    }
  }
  if (value_dim_ > 0) {
    float* x = z + key_width();
    std::copy_n(values, heads_ * value_dim_, x);
    add_scaled(-1.0f, value_mean_.as<float>(), heads_ * value_dim_, x);
  }
}

void BandsCode::encode(const float* z, std::int8_t* codes, std::int8_t* gain, float* work) const {
  std::fill_n(work, places_, 0.0f);
  const float* const weights = weights_.as<float>();
  const float* a = weights != nullptr ? synthesis_.as<float>() : analysis_.as<float>();
  for (std::int32_t j = 0; j < width(); ++j, a += places_) {
    add_scaled(weights != nullptr ? weights[j] * z[j] : z[j], a, places_, work);
  }
  float factor = 1.0f;
  *gain = 0;
  if (gain_) {
    double sum = 0.0;
    const float* inverse = inverse_sigma_.as<float>();
    for (std::int32_t i = 0; i < places_; ++i) {
      const double x = double{work[i]} * double{inverse[i]};
      sum += x * x;
    }
    *gain =
        log_gain_code(static_cast<float>(std::sqrt(sum / static_cast<double>(layout_.stored()))));
    factor = 1.0f / log_gain(*gain);
  }
  for (std::int32_t i = 0; i < places_; ++i) {
    const float level = std::floor(work[i] * factor * inverse_steps_.as<float>()[i]);
    codes[i] = static_cast<std::int8_t>(
        std::clamp(level, lowest_.as<float>()[i], highest_.as<float>()[i]));
  }
  if (layout_.quantizer() == BandsQuantizer::kTrellis) find_path(work, factor, codes);
}

// Of the components that follow a trellis; the others have their codes.
void BandsCode::find_path(const float* c, float factor, std::int8_t* codes) const {
  thread_local TrellisEncoder encoder;
  thread_local std::vector<float> x, weights;
  const auto n = static_cast<std::size_t>(places_);
  x.resize(n);
  weights.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = c[i] * factor * inverse_steps_.as<float>()[i];
    weights[i] = steps()[i] * steps()[i];
  }
  encoder.encode(layout_.quad_widths(), x.data(), weights.data(), codes);
}

void BandsCode::decode(const std::int8_t* values, std::int8_t gain, float* c) const noexcept {
  const float factor = gain_ ? log_gain(gain) : 1.0f;
  for (std::int32_t i = 0; i < places_; ++i) {
    c[i] = factor * steps_.as<float>()[i] * (static_cast<float>(values[i]) + 0.5f);
  }
}

void BandsCode::restore(const float* c, std::int32_t position, float* keys,
                        float* values) const noexcept {
  const auto synthesise = [&](const float* rows, std::int32_t dim, float* x) {
    for (std::int32_t j = 0; j < dim; ++j, rows += places_) {
      double sum = 0.0;
      for (std::int32_t i = 0; i < places_; ++i) sum += double{rows[i]} * double{c[i]};
      x[j] = static_cast<float>(sum);
    }
  };
  for (std::int32_t h = 0; h < heads_; ++h) {
    if (key_dim_ > 0) {
      float* x = keys + static_cast<std::ptrdiff_t>(h) * key_dim_;
      synthesise(key_rows(h), key_dim_, x);
      add_scaled(1.0f, turned_mean(h, position), key_dim_, x);
      turn_key(position, x);
    }
    if (value_dim_ > 0) {
      float* x = values + static_cast<std::ptrdiff_t>(h) * value_dim_;
      synthesise(value_rows(h), value_dim_, x);
      add_scaled(1.0f, value_mean(h), value_dim_, x);
    }
  }
}

std::size_t BandsCode::bytes() const noexcept {
  return analysis_.bytes() + weights_.bytes() + synthesis_.bytes() + steps_.bytes() +
         inverse_steps_.bytes() + lowest_.bytes() + highest_.bytes() + inverse_sigma_.bytes() +
         key_tiles_.bytes() + key_scales_.bytes() + key_weights_.bytes() + turned_means_.bytes() +
         value_mean_.bytes();
}

}  // namespace kvspan
