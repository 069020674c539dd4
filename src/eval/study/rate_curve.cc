// SPDX-License-Identifier: Apache-2.0
#include "eval/study/rate_curve.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/fail.h"
#include "eval/perplexity/perplexity.h"

namespace kvspan {

Status measure_rates(Engine& engine, std::span<const std::vector<Token>> windows,
                     Calibration& calibration, const TokenProgress& progress) {
  constexpr std::array kBits{0.75f, 1.0f, 1.5f, 2.0f, 2.5f, 3.0f, 4.0f};
  std::vector<std::string> recipes;
  for (const float bits : kBits) {
    recipes.push_back(fmt::format("bands:bits={},recent=32", bits));
  }
  const auto source = [&](const std::string& recipe) -> Result<std::unique_ptr<KvCache>> {
    KVSPAN_TRY(const CacheFactory caches,
               CacheFactory::create(engine.cache_shape(), recipe, &calibration));
    return caches.make();
  };
  PerplexityOptions options;
  options.block = std::min(64, engine.options().block);
  KVSPAN_TRY(const PerplexityReport report,
             measure_perplexity(engine, windows, recipes, source, options, progress));
  if (report.cancelled) return fail(ErrorCode::kCancelled, "stopped");
  std::vector<RatePoint> rates;
  for (std::size_t i = 0; i < kBits.size(); ++i) {
    const PerplexityRow& row = report.rows[i + 1];
    if (row.failed) return fail(ErrorCode::kInvalidArgument, "{}: {}", row.recipe, *row.failed);
    // On text that the model itself would write, the loss is the divergence, which a few windows tell far better.
    const auto kl = static_cast<float>(row.figures.kl);
    rates.push_back({kBits[i], kl, std::max(kl, static_cast<float>(row.figures.dppl_pct / 100.0))});
  }
  calibration.rates = std::move(rates);
  return {};
}

}  // namespace kvspan
