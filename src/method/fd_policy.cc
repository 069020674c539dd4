// SPDX-License-Identifier: Apache-2.0
#include "method/fd_policy.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "linalg/subspaces.h"
#include "method/domain_rows.h"
#include "method/sketches.h"
#include "method/unit_policy.h"

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

// The rows of B = S' of an orthonormal code, [r, D].
Matrix basis_of(const Code& code) {
  const auto r = static_cast<std::size_t>(code.rank()), d = static_cast<std::size_t>(code.width());
  Matrix basis(r, d);
  for (std::size_t j = 0; j < d; ++j) {
    for (std::size_t i = 0; i < r; ++i) basis(i, j) = code.synthesis(0)[j * r + i];
  }
  return basis;
}

}  // namespace

FdPolicy::FdPolicy(std::shared_ptr<const GroupPlan> plan, const FdOptions& options,
                   std::shared_ptr<Ledger> ledger)
    : plan_(std::move(plan)), options_(options), ledger_(std::move(ledger)) {
  clear();
}

FdPolicy::FdPolicy(const FdPolicy& other)
    : plan_(other.plan_),
      options_(other.options_),
      ledger_(other.ledger_),
      key_side_{clone_sketch(other.key_side_.sketch.get(), ledger_), other.key_side_.code},
      value_side_{clone_sketch(other.value_side_.sketch.get(), ledger_), other.value_side_.code},
      rows_seen_(other.rows_seen_),
      looked_at_(other.looked_at_),
      learnt_ahead_(other.learnt_ahead_),
      length_(other.length_),
      segments_(other.segments_) {}

void FdPolicy::clear() {
  key_side_ = {make_sketch(plan_->keys, options_.sketch_per_rank, ledger_),
               plan_->keys ? plan_->keys->start : nullptr};
  value_side_ = {make_sketch(plan_->values, options_.sketch_per_rank, ledger_),
                 plan_->values ? plan_->values->start : nullptr};
  rows_seen_ = segments_ = 0;
  looked_at_ = learnt_ahead_ = length_ = 0;
}

std::size_t FdPolicy::sketch_bytes() const noexcept {
  return (key_side_.sketch ? key_side_.sketch->bytes() : 0) +
         (value_side_.sketch ? value_side_.sketch->bytes() : 0);
}

void FdPolicy::add_codes(std::vector<const Code*>& codes) const {
  if (key_side_.code) codes.push_back(key_side_.code.get());
  if (value_side_.code) codes.push_back(value_side_.code.get());
}

bool FdPolicy::ready() const noexcept {
  return (!plan_->keys || key_side_.code) && (!plan_->values || value_side_.code);
}

Status FdPolicy::learn(const RowBlock& rows, std::size_t row) {
  if (rows_seen_++ % options_.every != 0) return {};
  if (plan_->keys) {
    KVSPAN_CHECK_OK(
        key_side_.sketch->update(domain_rows(rows, row, 1, 0, plan_->keys->style).view()));
  }
  if (plan_->values) {
    KVSPAN_CHECK_OK(
        value_side_.sketch->update(domain_rows(rows, row, 1, 0, plan_->values->style).view()));
  }
  return {};
}

bool FdPolicy::fits(const RowBlock& rows, std::size_t row) const {
  return (!plan_->keys || within(*plan_->keys, *key_side_.code, rows, row, options_.key_tau)) &&
         (!plan_->values ||
          within(*plan_->values, *value_side_.code, rows, row, options_.value_tau));
}

Status FdPolicy::begin_segment(Group& group, const RowBlock& rows, std::size_t row) {
  if (options_.warm > 0) {
    // The sketches begin anew with the last rows that are still at hand, this one included.
    const std::size_t from = row + 1 - std::min(row + 1, static_cast<std::size_t>(options_.warm));
    for (auto [side, plan] :
         {std::pair(&key_side_, &plan_->keys), std::pair(&value_side_, &plan_->values)}) {
      if (!*plan) continue;
      side->sketch->clear();
      KVSPAN_CHECK_OK(
          side->sketch->update(domain_rows(rows, from, row + 1 - from, 0, (*plan)->style).view()));
    }
  }
  for (auto [side, plan] :
       {std::pair(&key_side_, &plan_->keys), std::pair(&value_side_, &plan_->values)}) {
    if (!*plan) continue;
    KVSPAN_TRY(std::shared_ptr<const Code> next,
               sketch_code(*side->sketch, **plan, group.list().ledger()));
    const bool same =
        side->code && options_.merge < 1.0 && side->code->orthonormal() &&
        subspace_overlap(basis_of(*side->code).view(), basis_of(*next).view()) >= options_.merge;
    if (!same) side->code = std::move(next);
  }
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
  if (end <= looked_at_) return {};
  const RowBlock rows = group.read(0, end + options_.lookahead);
  std::int32_t gone = 0;  // rows of the block that have left
  for (std::int32_t i = looked_at_; i < end; ++i) {
    while (learnt_ahead_ + gone <= i + options_.lookahead) {
      KVSPAN_CHECK_OK(learn(rows, static_cast<std::size_t>(learnt_ahead_ + gone)));
      ++learnt_ahead_;
    }
    const auto row = static_cast<std::size_t>(i);
    if (!ready()) {
      // Full rank until the sketches hold as many directions as are asked for.
      group.settle_as_they_are(1);
      ++gone;
      --learnt_ahead_;
      std::int64_t wanted = 1;
      if (plan_->keys) wanted = std::max<std::int64_t>(wanted, plan_->keys->rank.directions);
      if (plan_->values) wanted = std::max<std::int64_t>(wanted, plan_->values->rank.directions);
      if (rows_seen_ / options_.every >= wanted) KVSPAN_CHECK_OK(begin_segment(group, rows, row));
      continue;
    }
    const bool full = length_ >= options_.chunk;
    const bool ripe = length_ >= options_.min_chunk;
    if (full || (ripe && !fits(rows, row))) {
      gone += looked_at_;
      KVSPAN_CHECK_OK(flush(group, rows, row));
      KVSPAN_CHECK_OK(begin_segment(group, rows, row));
    }
    ++looked_at_;
    ++length_;
    if (static_cast<std::size_t>(looked_at_) == kPieceRows) {
      gone += looked_at_;
      KVSPAN_CHECK_OK(flush(group, rows, row + 1));
    }
  }
  return {};
}

}  // namespace kvspan
