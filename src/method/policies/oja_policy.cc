// SPDX-License-Identifier: Apache-2.0
#include "method/policies/oja_policy.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/expect.h"
#include "base/fail.h"
#include "method/domain_rows.h"
#include "method/policies/unit_policy.h"
#include "method/state_bytes.h"

namespace kvspan {
namespace {

std::unique_ptr<OjaTracker> make_tracker(const std::optional<SidePlan>& side,
                                         const OjaPolicyOptions& options,
                                         const std::shared_ptr<Ledger>& ledger) {
  if (!side) return nullptr;
  const Matrix start = basis_rows(*side->start);
  Result<std::unique_ptr<OjaTracker>> tracker = OjaTracker::create(
      start.cols(),
      {.rank = start.rows(), .eta = options.eta, .norm = options.norm, .batch_rows = 0, .seed = 1},
      start.view(), ledger);
  KVSPAN_EXPECT(tracker.has_value(), "a calibrated basis has full rank");
  return std::move(*tracker);
}

std::unique_ptr<OjaTracker> clone_tracker(const OjaTracker* tracker,
                                          const std::shared_ptr<Ledger>& ledger) {
  if (tracker == nullptr) return nullptr;
  return std::unique_ptr<OjaTracker>(static_cast<OjaTracker*>(tracker->clone(ledger).release()));
}

Matrix chosen_rows(const Matrix& rows, std::span<const std::size_t> chosen) {
  Matrix out(chosen.size(), rows.cols());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    std::copy_n(rows.row(chosen[i]), rows.cols(), out.row(i));
  }
  return out;
}

}  // namespace

OjaPolicy::OjaPolicy(std::shared_ptr<const CodingPlan> plan, const OjaPolicyOptions& options,
                     std::shared_ptr<Ledger> ledger)
    : plan_(std::move(plan)),
      options_(options),
      ledger_(std::move(ledger)),
      keys_(make_tracker(plan_->keys, options_, ledger_)),
      values_(make_tracker(plan_->values, options_, ledger_)) {}

OjaPolicy::OjaPolicy(const OjaPolicy& other)
    : plan_(other.plan_),
      options_(other.options_),
      ledger_(other.ledger_),
      keys_(clone_tracker(other.keys_.get(), ledger_)),
      values_(clone_tracker(other.values_.get(), ledger_)) {}

std::size_t OjaPolicy::sketch_bytes() const noexcept {
  return (keys_ ? keys_->bytes() : 0) + (values_ ? values_->bytes() : 0);
}

Status OjaPolicy::save(const StateWriter& to) const {
  put_tracker(keys_.get(), to.out);
  put_tracker(values_.get(), to.out);
  return {};
}

Status OjaPolicy::load(Group& group, const StateReader& from) {
  KVSPAN_CHECK_OK(check_segments(
      group, {.plan = plan_.get(), .orthonormal = true, .same_rank = true}, from.in));
  KVSPAN_TRY(keys_, get_oja(keys_.get(), from));
  KVSPAN_TRY(values_, get_oja(values_.get(), from));
  return {};
}

Result<OjaPolicy::Stepped> OjaPolicy::step(const Group& group, const RowBlock& rows,
                                           std::span<const std::size_t> chosen, double eta) const {
  Stepped to{clone_tracker(keys_.get(), ledger_), clone_tracker(values_.get(), ledger_), {}};
  const auto turn =
      [&](OjaTracker* tracker,
          const std::optional<SidePlan>& side) -> Result<std::shared_ptr<const Code>> {
    if (tracker == nullptr) return std::shared_ptr<const Code>();
    const Matrix all = domain_rows(rows, 0, rows.size(), 0, side->style);
    tracker->set_eta(eta);
    KVSPAN_CHECK_OK(tracker->update(chosen_rows(all, chosen).view()));
    const Basis basis = tracker->basis(tracker->max_rank());
    return orthonormal_code(side->style, basis.rows.view(), {}, group.list().ledger(),
                            MemoryKind::kBases);
  };
  KVSPAN_TRY(to.codes.keys, turn(to.keys.get(), plan_->keys));
  KVSPAN_TRY(to.codes.values, turn(to.values.get(), plan_->values));
  return to;
}

Status OjaPolicy::recode(Group& group, const NewCodes& codes) const {
  switch (options_.stale) {
    case Stale::kSegment:
      break;
    case Stale::kRotate:
      return rotate_coefficients(group, codes);
    case Stale::kReuse:
      return reuse_coefficients(group, codes);
  }
  return {};
}

Status OjaPolicy::settle(Group& group) {
  const std::int32_t units = (group.waiting() - plan_->recent) / plan_->unit;
  if (units < 1) return {};
  const auto n = static_cast<std::size_t>(units * plan_->unit);
  const RowBlock rows = group.read(0, static_cast<std::int32_t>(n));
  std::vector<std::size_t> chosen(n);
  std::iota(chosen.begin(), chosen.end(), std::size_t{0});
  const bool reading = units > 1;
  if (reading && group.options().scores) {
    const std::vector<float> received = group.received(group.settled(), n);
    const auto keep =
        static_cast<std::size_t>(std::max(1.0, std::ceil(options_.top * static_cast<double>(n))));
    // By attention, then by age, so that the choice does not depend on the sort.
    std::partial_sort(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(keep),
                      chosen.end(), [&](std::size_t a, std::size_t b) {
                        return received[a] != received[b] ? received[a] > received[b] : a < b;
                      });
    chosen.resize(keep);
    std::sort(chosen.begin(), chosen.end());
  }
  KVSPAN_TRY(Stepped next,
             step(group, rows, chosen, reading ? options_.eta_prefill : options_.eta));
  const OneCode keys(next.codes.keys), values(next.codes.values);
  Status coded = group.attempt([&](Group& copy) -> Status {
    KVSPAN_CHECK_OK(recode(copy, next.codes));
    for (std::size_t first = 0; first < n; first += static_cast<std::size_t>(plan_->unit)) {
      KVSPAN_CHECK_OK(copy.code(rows, first, static_cast<std::size_t>(plan_->unit), keys.span(),
                                values.span()));
    }
    return {};
  });
  KVSPAN_CHECK_OK(std::move(coded));
  keys_ = std::move(next.keys);
  values_ = std::move(next.values);
  return {};
}

}  // namespace kvspan
