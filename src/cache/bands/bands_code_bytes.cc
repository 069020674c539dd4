// SPDX-License-Identifier: Apache-2.0
// A learnt code of bands as bytes: docs/reference/formats/cache.md. Components are written in
// stored order, in which a layout puts them again.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/byte_stream.h"
#include "base/expect.h"
#include "base/fail.h"
#include "cache/bands/bands_code.h"

namespace kvspan {
namespace {

// Beyond what rows of f16 can make; products of such numbers, a row's width of them added, stay
// finite.
constexpr float kMost = 1e12f, kMostInverse = 1e13f, kLeastStep = 1e-30f;

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
  const auto d = static_cast<std::size_t>(width());
  const std::size_t stored = layout_.stored();
  KVSPAN_EXPECT(weights_.bytes() > 0 && key_blocks_.bytes() + value_blocks_.bytes() == 0,
                "a learnt code");
  for (std::size_t i = 0; i < d; ++i) {
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
  const std::size_t start = in.offset();
  BandsParts parts = like;
  const auto heads = static_cast<std::size_t>(like.heads);
  const std::size_t keys = heads * static_cast<std::size_t>(like.key_dim);
  const std::size_t values = heads * static_cast<std::size_t>(like.value_dim), d = keys + values;
  std::vector<std::uint8_t> bits(d);
  KVSPAN_CHECK_OK(in.get_all("bits of a bands code", std::span<std::uint8_t>(bits)));
  const auto stored =
      static_cast<std::size_t>(std::find(bits.begin(), bits.end(), std::uint8_t{0}) - bits.begin());
  for (std::size_t i = 1; i < d; ++i) {
    if (bits[i] <= bits[i - 1]) continue;
    return in.wrong("bits of a bands code", d - i, int{bits[i]},
                    fmt::format("up to {}, those before", bits[i - 1]));
  }
  const auto read = [&](std::string_view field, std::span<float> to, float most) {
    return in.get_finite(field, to, most);
  };
  std::vector<float> key_mean(keys), value_mean(values), weights(d), steps(d, 1.0f), inverse(d);
  KVSPAN_CHECK_OK(read("key mean of a bands code", key_mean, kMost));
  KVSPAN_CHECK_OK(read("value mean of a bands code", value_mean, kMost));
  KVSPAN_CHECK_OK(read("weights of a bands code", weights, kMost));
  KVSPAN_CHECK_OK(read("steps of a bands code", std::span(steps).first(stored), kMost));
  KVSPAN_CHECK_OK(read("spreads of a bands code", std::span(inverse).first(stored), kMostInverse));
  std::vector<float> scales(d);
  KVSPAN_CHECK_OK(read("row scales of a bands code", scales, kMost));
  KVSPAN_TRY(const auto numbers,
             in.get_bytes("synthesis of a bands code", d * stored * sizeof(Half)));
  std::vector<float> synthesis(d * d);
  for (std::size_t j = 0; j < d; ++j) {
    KVSPAN_CHECK_OK(read_row(numbers.subspan(j * stored * sizeof(Half), stored * sizeof(Half)),
                             scales[j], in, synthesis.data() + j * d));
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
  parts.synthesis = {synthesis.data(), {d, d}};
  auto code = build(parts, ledger, MemoryKind::kBases);
  if (!code) {
    return fail(ErrorCode::kCorruptData, "{}: bands code at byte {}: {}", in.what(), start,
                code.error().message);
  }
  std::copy_n(inverse.begin(), stored, (*code)->inverse_sigma_.as<float>());
  return std::shared_ptr<const BandsCode>(std::move(code).value());
}

}  // namespace kvspan
