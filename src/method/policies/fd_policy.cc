// SPDX-License-Identifier: Apache-2.0
#include "method/policies/fd_policy.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "linalg/subspaces.h"
#include "method/domain_rows.h"
#include "method/policies/unit_policy.h"
#include "method/sketches.h"

namespace kvspan {
namespace {

// Whether a row leaves less than tau of its length outside the code.
bool within(const SidePlan& side, const Code& code, const RowBlock& rows, std::size_t row,
            double tau) {
  const Matrix x = domain_rows(rows, row, 1, 0, side.style);
  std::vector<float> c(static_cast<std::size_t>(code.rank()));
  code.analyse(x.data(), c.data());
  double whole = 0.0, kept = 0.0;
  for (std::size_t i = 0; i < x.cols(); ++i) whole += double{x(0, i)} * double{x(0, i)};
  for (const float value : c) kept += double{value} * double{value};
  return whole - kept <= tau * tau * whole;
}

}  // namespace

FdPolicy::FdPolicy(std::shared_ptr<const CodingPlan> plan, const FdOptions& options,
                   std::shared_ptr<Ledger> ledger)
    : plan_(std::move(plan)),
      options_(options),
      ledger_(std::move(ledger)),
      key_side_(begin_side(plan_->keys, true)),
      value_side_(begin_side(plan_->values, !options_.shared)) {}

FdPolicy::FdPolicy(const FdPolicy& other)
    : plan_(other.plan_),
      options_(other.options_),
      ledger_(other.ledger_),
      key_side_(clone_side(other.key_side_)),
      value_side_(clone_side(other.value_side_)),
      rows_seen_(other.rows_seen_),
      looked_at_(other.looked_at_),
      learnt_ahead_(other.learnt_ahead_),
      length_(other.length_),
      key_learnt_(other.key_learnt_),
      segments_(other.segments_) {}

FdPolicy::Side FdPolicy::begin_side(const std::optional<SidePlan>& plan, bool sketches) const {
  if (!plan) return {};
  if (!sketches) return {nullptr, plan->start, {}, 0};
  Side side{make_sketch(plan, options_.sketch_per_rank, ledger_), plan->start, {}, 0};
  if (options_.warm > 0) {
    const auto floats = ring_rows() * static_cast<std::size_t>(plan->style.heads * plan->style.dim);
    side.ring = Buffer(floats * sizeof(float), MemoryKind::kSketches, ledger_);
  }
  return side;
}

FdPolicy::Side FdPolicy::clone_side(const Side& side) const {
  return {clone_sketch(side.sketch.get(), ledger_), side.code,
          side.ring.bytes() > 0 ? side.ring.clone(ledger_) : Buffer(), side.learnt};
}

void FdPolicy::truncate(const Group& group, std::int32_t position) noexcept {
  const std::int32_t waiting = std::max(0, group.list().index_of(position) - group.settled());
  looked_at_ = std::min(looked_at_, waiting);
  learnt_ahead_ = std::min(learnt_ahead_, waiting);
}

std::size_t FdPolicy::sketch_bytes() const noexcept {
  std::size_t sum = key_side_.ring.bytes() + value_side_.ring.bytes();
  if (key_side_.sketch) sum += key_side_.sketch->bytes();
  if (value_side_.sketch) sum += value_side_.sketch->bytes();
  return sum;
}

void FdPolicy::add_codes(std::vector<const Code*>& codes) const {
  if (key_side_.code) codes.push_back(key_side_.code.get());
  if (value_side_.code) codes.push_back(value_side_.code.get());
}

bool FdPolicy::ready() const noexcept {
  return (!plan_->keys || key_side_.code) && (!plan_->values || value_side_.code);
}

Status FdPolicy::learn_row(Side& side, const SidePlan& plan, const RowBlock& rows,
                           std::size_t row) {
  const Matrix x = domain_rows(rows, row, 1, 0, plan.style);
  KVSPAN_CHECK_OK(side.sketch->update(x.view()));
  if (options_.warm > 0) {
    const std::size_t place = side.learnt++ % ring_rows();
    std::copy_n(x.data(), x.cols(), side.ring.as<float>() + place * x.cols());
  }
  return {};
}

Status FdPolicy::learn(const RowBlock& rows, std::size_t row) {
  if (rows_seen_ % options_.every == 0) {
    if (plan_->keys && !key_learnt_) {
      KVSPAN_CHECK_OK(learn_row(key_side_, *plan_->keys, rows, row));
      key_learnt_ = true;
    }
    if (plan_->values) {
      Side& side = options_.shared ? key_side_ : value_side_;
      KVSPAN_CHECK_OK(learn_row(side, *plan_->values, rows, row));
    }
    key_learnt_ = false;
  }
  ++rows_seen_;
  return {};
}

bool FdPolicy::fits(const RowBlock& rows, std::size_t row) const {
  return (!plan_->keys || within(*plan_->keys, *key_side_.code, rows, row, options_.key_tau)) &&
         (!plan_->values ||
          within(*plan_->values, *value_side_.code, rows, row, options_.value_tau));
}

// The sketch begins anew with the last rows, oldest first.
Status FdPolicy::warm_up(Side& side) {
  if (options_.warm == 0 || !side.sketch) return {};
  const std::size_t held = std::min(side.learnt, ring_rows()), d = side.sketch->dim();
  side.sketch->clear();
  for (std::size_t i = side.learnt - held; i < side.learnt; ++i) {
    const float* row = side.ring.as<float>() + i % ring_rows() * d;
    KVSPAN_CHECK_OK(side.sketch->update(MatrixView(row, {1, d})));
  }
  return {};
}

Result<std::shared_ptr<const Code>> FdPolicy::next_code(
    const Side& side, const SidePlan& plan, const std::shared_ptr<Ledger>& ledger) const {
  const Side& from = side.sketch ? side : key_side_;
  KVSPAN_TRY(std::shared_ptr<const Code> next, sketch_code(*from.sketch, plan, ledger));
  const bool same =
      side.code && options_.merge < 1.0 && side.code->orthonormal() &&
      subspace_overlap(basis_rows(*side.code).view(), basis_rows(*next).view()) >= options_.merge;
  return same ? side.code : std::move(next);
}

Status FdPolicy::begin_segment(Group& group) {
  const std::shared_ptr<Ledger>& ledger = group.list().ledger();
  KVSPAN_CHECK_OK(warm_up(key_side_));
  KVSPAN_CHECK_OK(warm_up(value_side_));
  std::shared_ptr<const Code> keys, values;
  if (plan_->keys) {
    KVSPAN_TRY(keys, next_code(key_side_, *plan_->keys, ledger));
  }
  if (plan_->values) {
    KVSPAN_TRY(values, next_code(value_side_, *plan_->values, ledger));
  }
  key_side_.code = std::move(keys);
  value_side_.code = std::move(values);
  length_ = 0;
  ++segments_;
  return {};
}

Status FdPolicy::flush(Group& group, const RowBlock& rows, std::size_t end) {
  if (looked_at_ == 0) return {};
  const auto n = static_cast<std::size_t>(looked_at_);
  KVSPAN_CHECK_OK(group.code(rows, end - n, n, OneCode(key_side_.code).span(),
                             OneCode(value_side_.code).span()));
  learnt_ahead_ -= looked_at_;
  looked_at_ = 0;
  return {};
}

Status FdPolicy::settle(Group& group) {
  const std::int32_t waiting = group.waiting();
  const std::int32_t end = waiting - plan_->recent - options_.lookahead;
  constexpr auto piece = static_cast<std::int32_t>(kPieceRows);
  if (end <= looked_at_ && looked_at_ < piece) return {};
  const RowBlock rows = group.read(0, end + options_.lookahead);
  std::int32_t gone = 0;  // rows of the block that have left
  for (std::int32_t i = looked_at_;; ++i) {
    const auto row = static_cast<std::size_t>(i);
    if (looked_at_ == piece) {
      gone += looked_at_;
      KVSPAN_CHECK_OK(flush(group, rows, row));
    }
    if (i >= end) return {};
    while (learnt_ahead_ + gone <= i + options_.lookahead) {
      KVSPAN_CHECK_OK(learn(rows, static_cast<std::size_t>(learnt_ahead_ + gone)));
      ++learnt_ahead_;
    }
    if (!ready()) {
      // Full rank until the sketches hold as many directions as are asked for.
      std::int64_t wanted = 1;
      if (plan_->keys) wanted = std::max<std::int64_t>(wanted, plan_->keys->rank.directions);
      if (plan_->values) wanted = std::max<std::int64_t>(wanted, plan_->values->rank.directions);
      if (rows_seen_ / options_.every >= wanted) KVSPAN_CHECK_OK(begin_segment(group));
      group.settle_as_they_are(rows.positions[row] + 1);
      ++gone;
      --learnt_ahead_;
      continue;
    }
    const bool full = length_ >= options_.chunk;
    const bool ripe = length_ >= options_.min_chunk;
    if (full || (ripe && !fits(rows, row))) {
      gone += looked_at_;
      KVSPAN_CHECK_OK(flush(group, rows, row));
      KVSPAN_CHECK_OK(begin_segment(group));
    }
    ++looked_at_;
    ++length_;
  }
}

}  // namespace kvspan
