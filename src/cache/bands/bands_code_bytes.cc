// SPDX-License-Identifier: Apache-2.0
// A code of bands as bytes: learnt from a sequence, docs/reference/formats/cache.md, or designed
// from a calibration, docs/reference/formats/codes.md. Components are written in stored order, in
// which a layout puts them again.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/byte_stream.h"
#include "base/expect.h"
#include "base/fail.h"
#include "cache/bands/bands_code.h"

namespace kvspan {
namespace {

// Beyond what rows of f16 can make; products of such numbers, a row's width of them added, stay
// finite.
constexpr float kMost = 1e12f, kMostInverse = 1e13f, kLeastStep = 1e-30f;
// Of a designed code, whose metric has the units of what was measured.
constexpr float kMostDesigned = 1e30f;

// A row of B as `save` writes it: f16 below 2, and the power of two that they count in.
Status read_row(std::span<const std::byte> numbers, float scale, const ByteReader& in, float* to) {
  for (std::size_t i = 0; i < numbers.size() / sizeof(Half); ++i) {
    Half number;
    std::memcpy(&number, numbers.data() + i * sizeof(Half), sizeof(Half));
    to[i] = scale * to_float(number);
    if (std::abs(to_float(number)) < 2.0f && scale > 0.0f &&
        std::scalbn(1.0f, std::ilogb(scale)) == scale) {
      continue;
    }
    return fail(ErrorCode::kCorruptData,
                "{}: synthesis of a bands code before byte {} has {} times {}; allowed: numbers "
                "below 2 times powers of two",
                in.what(), in.offset(), to_float(number), scale);
  }
  return {};
}

}  // namespace

void BandsCode::save(ByteWriter& out) const {
  KVSPAN_EXPECT(weights_.bytes() > 0 && key_blocks_.bytes() + value_blocks_.bytes() == 0,
                "a learnt code");
  save_common(out);
}

void BandsCode::save_designed(ByteWriter& out) const {
  KVSPAN_EXPECT(weights_.bytes() > 0, "a code that was designed with a metric");
  // Blocks stand before what they make of the weights: none have to be above 0 beside them.
  // Sizes by what is held: memory is allocated in whole cache lines.
  for (const auto& [blocks, dim] : {std::pair(&key_blocks_, key_dim_), std::pair(&value_blocks_, value_dim_)}) {
    const bool there = blocks->bytes() > 0;
    out.put(static_cast<std::uint8_t>(there ? 1 : 0));
    const auto count = static_cast<std::size_t>(heads_ * dim) * static_cast<std::size_t>(dim);
    if (there) out.put_all(std::span(blocks->as<float>(), count));
  }
  if (key_dim_ > 0) out.put_all(std::span(key_weights_.as<float>(), static_cast<std::size_t>(key_width())));
  save_common(out);
}

void BandsCode::save_common(ByteWriter& out) const {
  const auto d = static_cast<std::size_t>(width());
  const std::size_t stored = layout_.stored();
  for (std::size_t i = 0; std::cmp_less(i, components_); ++i) {
    out.put(static_cast<std::uint8_t>(i < stored ? layout_.width(i) : 0));
  }
  out.put_all(std::span<const float>(key_mean(0), static_cast<std::size_t>(key_width())));
  out.put_all(
      std::span<const float>(value_mean_.as<float>(), d - static_cast<std::size_t>(key_width())));
  out.put_all(std::span<const float>(weights_.as<float>(), d));
  out.put_all(std::span<const float>(steps(), stored));
  out.put_all(std::span<const float>(inverse_sigma_.as<float>(), stored));
  out.put_all(std::span<const float>(row_scales_.as<float>(), d));
  for (std::size_t j = 0; j < d; ++j) {
    const Half* row = synthesis_.as<Half>() + j * static_cast<std::size_t>(row_stride());
    out.put_bytes(std::as_bytes(std::span(row, stored)));
  }
}

Result<std::shared_ptr<const BandsCode>> BandsCode::load(const BandsParts& like, ByteReader& in,
                                                         const std::shared_ptr<Ledger>& ledger) {
  KVSPAN_TRY(std::shared_ptr<BandsCode> code, load_common(like, false, in, ledger));
  return std::shared_ptr<const BandsCode>(std::move(code));
}

Result<std::shared_ptr<const BandsCode>> BandsCode::load_designed(
    const BandsParts& like, ByteReader& in, const std::shared_ptr<Ledger>& ledger) {
  BandsParts parts = like;
  const auto heads = static_cast<std::size_t>(like.heads);
  std::vector<float> key_blocks, value_blocks;
  for (const auto& [dim, to] :
       {std::pair(static_cast<std::size_t>(like.key_dim), &key_blocks),
        std::pair(static_cast<std::size_t>(like.value_dim), &value_blocks)}) {
    KVSPAN_TRY(const auto there, in.get<std::uint8_t>("form of a metric"));
    if (there > 1) return in.wrong("form of a metric", 1, int{there}, "0 or 1");
    if (there == 0) continue;
    KVSPAN_CHECK_OK(
        in.expect_at_least("metric of a bands code", heads * dim * dim * sizeof(float)));
    to->resize(heads * dim * dim);
    KVSPAN_CHECK_OK(in.get_finite("metric of a bands code", std::span(*to), kMostDesigned));
  }
  parts.key_blocks = key_blocks;
  parts.value_blocks = value_blocks;
  const std::size_t keys = heads * static_cast<std::size_t>(like.key_dim);
  KVSPAN_CHECK_OK(in.expect_at_least("weights of keys", keys * sizeof(float)));
  std::vector<float> key_weights(keys);
  KVSPAN_CHECK_OK(in.get_finite("weights of keys", std::span(key_weights), kMostDesigned));
  KVSPAN_TRY(std::shared_ptr<BandsCode> code, load_common(parts, true, in, ledger));
  if (keys > 0) std::copy(key_weights.begin(), key_weights.end(), code->key_weights_.as<float>());
  return std::shared_ptr<const BandsCode>(std::move(code));
}

Result<std::shared_ptr<BandsCode>> BandsCode::load_common(BandsParts parts, bool designed,
                                                          ByteReader& in,
                                                          const std::shared_ptr<Ledger>& ledger) {
  const std::size_t start = in.offset();
  const BandsParts& like = parts;
  const float most_number = designed ? kMostDesigned : kMost;
  const auto heads = static_cast<std::size_t>(like.heads);
  const std::size_t keys = heads * static_cast<std::size_t>(like.key_dim);
  const std::size_t values = heads * static_cast<std::size_t>(like.value_dim), d = keys + values;
  const std::size_t components = like.all_components();
  std::vector<std::uint8_t> bits(components);
  KVSPAN_CHECK_OK(in.get_all("bits of a bands code", std::span<std::uint8_t>(bits)));
  const auto stored =
      static_cast<std::size_t>(std::find(bits.begin(), bits.end(), std::uint8_t{0}) - bits.begin());
  for (std::size_t i = 1; i < components; ++i) {
    if (bits[i] <= bits[i - 1]) continue;
    return in.wrong("bits of a bands code", components - i, int{bits[i]},
                    fmt::format("up to {}, those before", bits[i - 1]));
  }
  const auto read = [&](std::string_view field, std::span<float> to, float most) {
    return in.get_finite(field, to, most);
  };
  std::vector<float> key_mean(keys), value_mean(values), weights(d), steps(components, 1.0f), inverse(components);
  KVSPAN_CHECK_OK(read("key mean of a bands code", key_mean, most_number));
  KVSPAN_CHECK_OK(read("value mean of a bands code", value_mean, most_number));
  KVSPAN_CHECK_OK(read("weights of a bands code", weights, most_number));
  KVSPAN_CHECK_OK(read("steps of a bands code", std::span(steps).first(stored), most_number));
  KVSPAN_CHECK_OK(read("spreads of a bands code", std::span(inverse).first(stored),
                       designed ? kMostDesigned : kMostInverse));
  std::vector<float> scales(d);
  KVSPAN_CHECK_OK(read("row scales of a bands code", scales, most_number));
  KVSPAN_TRY(const auto numbers,
             in.get_bytes("synthesis of a bands code", d * stored * sizeof(Half)));
  std::vector<float> synthesis(d * components);
  for (std::size_t j = 0; j < d; ++j) {
    KVSPAN_CHECK_OK(read_row(numbers.subspan(j * stored * sizeof(Half), stored * sizeof(Half)),
                             scales[j], in, synthesis.data() + j * components));
  }
  for (std::size_t i = 0; i < stored; ++i) {
    if (steps[i] >= kLeastStep && inverse[i] >= 0.0f) continue;
    return fail(ErrorCode::kCorruptData,
                "{}: bands code at byte {}: component {} has step {} and inverse spread {}",
                in.what(), start, i, steps[i], inverse[i]);
  }
  parts.key_mean = key_mean;
  parts.value_mean = value_mean;
  parts.weights = weights;
  parts.steps = steps;
  parts.sigma = steps;  // the inverse is what was saved
  parts.bits = bits;
  parts.synthesis = {synthesis.data(), {d, components}};
  auto code = build(parts, ledger, designed ? MemoryKind::kShared : MemoryKind::kBases);
  if (!code) {
    return fail(ErrorCode::kCorruptData, "{}: bands code at byte {}: {}", in.what(), start,
                code.error().message);
  }
  std::copy_n(inverse.begin(), stored, (*code)->inverse_sigma_.as<float>());
  return std::move(code).value();
}

}  // namespace kvspan
