// SPDX-License-Identifier: Apache-2.0
#include "method/sketches.h"

#include <algorithm>

#include "base/expect.h"
#include "base/fail.h"

namespace kvspan {

std::unique_ptr<FrequentDirections> make_sketch(const std::optional<SidePlan>& side,
                                                std::int32_t per_rank,
                                                const std::shared_ptr<Ledger>& ledger) {
  if (!side) return nullptr;
  const std::int32_t width = side->style.heads * side->style.dim;
  const std::int32_t rows =
      side->rank.directions > 0 ? std::min(per_rank * side->rank.directions, width) : width;
  Result<std::unique_ptr<FrequentDirections>> sketch = FrequentDirections::create(
      static_cast<std::size_t>(width), {.sketch_rows = static_cast<std::size_t>(rows)}, ledger);
  KVSPAN_EXPECT(sketch.has_value(), "the plan has a rank that fits");
  return std::move(*sketch);
}

std::unique_ptr<FrequentDirections> clone_sketch(const FrequentDirections* sketch,
                                                 const std::shared_ptr<Ledger>& ledger) {
  if (sketch == nullptr) return nullptr;
  return std::unique_ptr<FrequentDirections>(
      static_cast<FrequentDirections*>(sketch->clone(ledger).release()));
}

Result<std::shared_ptr<const Code>> sketch_code(const FrequentDirections& sketch,
                                                const SidePlan& side,
                                                const std::shared_ptr<Ledger>& ledger) {
  const auto rank = static_cast<std::size_t>(side.rank.choose(sketch.spectrum()));
  const Basis basis = sketch.basis(rank);
  return orthonormal_code(side.style, basis.rows.view(), {}, ledger, MemoryKind::kBases);
}

}  // namespace kvspan
