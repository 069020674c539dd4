// SPDX-License-Identifier: Apache-2.0
#include "method/bands/choose_recipe.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/fail.h"
#include "codec/bands/bands_pack.h"

namespace kvspan {
namespace {

constexpr std::int32_t kSink = 32;
constexpr std::array<std::int32_t, 2> kRecents{128, 32};
constexpr double kLeastBits = 0.5, kMostBits = 6.0, kStep = 0.05;
constexpr double kEscape = 0.005;  // most of the tokens that stay exact, where bytes are bounded
constexpr std::int32_t kEndBlock = 64;  // tokens that full-rank ends and coded tiles grow by

std::string bands_recipe(double bits, std::int32_t recent, const std::string& more = "") {
  return Recipe::parse(fmt::format("bands:bits={:.2f},recent={}{}", bits, recent, more)).value().text();
}

Result<Choice> fit_budget(const CacheShape& shape, std::uint64_t budget, std::int32_t tokens,
                          const Calibration& calibration) {
  const std::string bounded = fmt::format(",escape={}", kEscape);
  const std::size_t full = full_rank_f16_bytes(shape, (tokens + kEndBlock) / kEndBlock * kEndBlock);
  if (full <= budget) return Choice{"full", tokens, full, RatePoint{16.0f, 0.0f, 0.0f}};
  for (const std::int32_t recent : kRecents) {
    for (double bits = kMostBits; bits > kLeastBits - kStep / 2; bits -= kStep) {
      const std::size_t bytes = most_bands_bytes(shape, bits, recent, tokens);
      if (bytes > budget) continue;
      Choice choice{bands_recipe(bits, recent, bounded), tokens, bytes, std::nullopt};
      if (!calibration.rates.empty()) choice.expected = expected_cost(calibration.rates, bits);
      return choice;
    }
  }
  return fail(ErrorCode::kOutOfBudget,
              "auto: budget={} cannot hold {} tokens; the least that can is {} bytes "
              "({}), full rank takes {}",
              budget, tokens, most_bands_bytes(shape, kLeastBits, kRecents.back(), tokens),
              bands_recipe(kLeastBits, kRecents.back(), bounded), full);
}

Result<Choice> fit_quality(double quality, const Calibration& calibration) {
  if (calibration.rates.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "auto: quality={} needs to know what bits cost, and the calibration of {} does not "
                "say; `kvspan calibrate --layer-weights measure` measures it, budget=BYTES does "
                "without",
                quality, calibration.model);
  }
  for (double bits = kLeastBits; bits < kMostBits + kStep / 2; bits += kStep) {
    const RatePoint cost = expected_cost(calibration.rates, bits);
    if (cost.loss <= quality) return Choice{bands_recipe(bits, kRecents.front()), 0, 0, cost};
  }
  return Choice{"full", 0, 0, RatePoint{16.0f, 0.0f, 0.0f}};
}

}  // namespace

RatePoint expected_cost(const std::vector<RatePoint>& rates, double bits) {
  if (rates.size() == 1 || bits >= rates.back().bits) return rates.back();
  std::size_t high = 1;
  while (rates[high].bits < bits) ++high;
  const RatePoint &from = rates[high - 1], &to = rates[high];
  const double share = (bits - from.bits) / (double{to.bits} - from.bits);
  const auto along = [&](float a, float b) {
    const double start = std::log(std::max(double{a}, 1e-9));
    const double end = std::log(std::max(double{b}, 1e-9));
    return static_cast<float>(std::exp(start + share * (end - start)));
  };
  return {static_cast<float>(bits), along(from.kl, to.kl), along(from.loss, to.loss)};
}

std::size_t most_bands_bytes(const CacheShape& shape, double bits, std::int32_t recent,
                             std::int32_t tokens) {
  const auto tile = static_cast<std::int32_t>(kBandTokens);
  const std::int32_t ends = std::min(tokens, kSink + recent + tile);
  const std::int32_t coded = std::max(0, tokens - kSink - recent);
  const double escaped = std::ceil(kEscape * coded);
  const auto in_blocks = [](double n) { return std::ceil(n / kEndBlock) * kEndBlock; };
  double total = 0.0;
  for (const LayerShape& layer : shape.layers) {
    const double width = double{1} * layer.kv_heads * (layer.key_dim + layer.value_dim);
    // Sink, recent and escaped rows are apart: each may end inside a block.
    total += 2.0 * width * (in_blocks(ends + escaped) + kEndBlock);
    // Bits of a layer differ, their mean is `bits`, within what the allocation is stopped at; a
    // byte of gain and the marks of escapes, of each group of heads, are in blocks, positions of
    // full-rank rows 4 bytes each.
    total += in_blocks(coded) * (width * (bits + 2e-3) / 8.0 + 0.125 * layer.kv_heads);
    total += 4.0 * (in_blocks(ends + escaped) + kEndBlock);
  }
  return static_cast<std::size_t>(std::ceil(total));
}

Result<Choice> choose_recipe(const CacheShape& shape, const RecipePart& part,
                             const Calibration& calibration) {
  const std::optional<std::uint64_t> budget = part.bytes("budget");
  if (!budget) return fit_quality(part.number("quality"), calibration);
  if (!part.has("ctx")) {
    return fail(ErrorCode::kInvalidArgument,
                "auto: budget={} says nothing without ctx=TOKENS, how many tokens have to fit",
                *budget);
  }
  return fit_budget(shape, *budget, static_cast<std::int32_t>(part.count("ctx")), calibration);
}

}  // namespace kvspan
