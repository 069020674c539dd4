// SPDX-License-Identifier: Apache-2.0
#include "method/policies/spectral_policy.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "method/domain_rows.h"
#include "subspace/gram_tracker.h"

namespace kvspan {
namespace {

// The leading right singular vectors of rows, each row counting `weights` times.
Result<std::shared_ptr<const Code>> block_code(const SidePlan& side, const Matrix& rows,
                                               std::span<const float> weights,
                                               const std::shared_ptr<Ledger>& ledger) {
  KVSPAN_TRY(const std::unique_ptr<GramTracker> gram,
             GramTracker::create(rows.cols(), GramOptions{}, nullptr));
  KVSPAN_CHECK_OK(gram->update(rows.view(), weights));
  const std::vector<double> spectrum = gram->spectrum();
  const Basis basis = gram->basis(static_cast<std::size_t>(side.rank.choose(spectrum)));
  return orthonormal_code(side.style, basis.rows.view(), {}, ledger, MemoryKind::kBases);
}

// The oldest n waiting rows' received attention, scaled to a mean of 1, and not below a thousandth
// of it: a row that nobody has looked at yet may still be looked at.
std::vector<float> received_weights(const Group& group, std::size_t n) {
  const std::vector<float> received = group.received(group.settled(), n);
  double sum = 0.0;
  for (const float r : received) sum += r;
  std::vector<float> weights(n, 1.0f);
  if (!(sum > 0.0)) return weights;
  for (std::size_t i = 0; i < n; ++i) {
    weights[i] = std::max(1e-3f, static_cast<float>(received[i] * static_cast<double>(n) / sum));
  }
  return weights;
}

}  // namespace

Status SpectralPolicy::settle_unit(Group& group, const RowBlock& rows, std::size_t first) {
  const auto n = static_cast<std::size_t>(plan().unit);
  OneCode keys, values;
  if (plan().keys) {
    KVSPAN_TRY(std::shared_ptr<const Code> code,
               block_code(*plan().keys, domain_rows(rows, first, n, 0, plan().keys->style), {},
                          group.list().ledger()));
    keys = OneCode(std::move(code));
  }
  if (plan().values) {
    const std::vector<float> weights =
        plan().weigh_values ? received_weights(group, n) : std::vector<float>();
    KVSPAN_TRY(std::shared_ptr<const Code> code,
               block_code(*plan().values, domain_rows(rows, first, n, 0, plan().values->style),
                          weights, group.list().ledger()));
    values = OneCode(std::move(code));
  }
  return group.code(rows, first, n, keys.span(), values.span());
}

}  // namespace kvspan
