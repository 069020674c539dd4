// SPDX-License-Identifier: Apache-2.0
// Selectors that drop tokens by the attention they received.
//     snapkv        once, when the prompt has been read: of its tokens those that its last queries
//                   attend to, pooled so that neighbours stay together
//     h2o           always: the most recent, and of the others those that received most in all
//     scissorhands  when over budget: those that the last queries attended to least go
// A prompt has been read when the first single query comes. Dropping happens in steps of some
// tokens, so the budget is exceeded by less than that in between. Sources: Li et al. 2024; Zhang et
// al. 2023; Liu et al. 2023.
#pragma once

#include <cstdint>
#include <memory>

#include "method/selectors/selector.h"
#include "method/selectors/token_scores.h"
#include "recipe/value.h"

namespace kvspan {

struct SnapkvOptions {
  Amount keep;
  std::int32_t window = 32;
  std::int32_t pool = 7;
  bool mean = false;  // pooling; else the maximum
};

class SnapkvSelector final : public Selector {
 public:
  SnapkvSelector(const SnapkvOptions& options, std::shared_ptr<Ledger> ledger)
      : options_(options), ledger_(std::move(ledger)) {}
  std::int32_t observed(std::int32_t queries) const noexcept override {
    return queries > 1 ? options_.window : 0;
  }
  void observe(std::span<const float> received) override;
  Status settle(Group& group, std::int32_t queries) override;
  void truncate(const Group& group, std::int32_t position) noexcept override;
  void forgot(std::int32_t tokens) override;
  std::unique_ptr<Selector> clone() const override {
    return std::make_unique<SnapkvSelector>(*this);
  }
  void save(const StateWriter& to) const override;
  Status load(const Group& group, const StateReader& from) override;
  std::size_t bytes() const noexcept override { return scores_.bytes(); }

 private:
  SnapkvOptions options_;
  std::shared_ptr<Ledger> ledger_;
  TokenScores scores_;       // by the last queries of the last block
  std::int32_t prompt_ = 0;  // tokens when they were observed; 0: done
};

struct HeavyOptions {
  Amount keep;                // tokens kept in all
  Amount recent;              // of these, the most recent
  bool history_only = false;  // scissorhands: only attention since the last drop counts
  Amount drop{false, 32};     // tokens that go at a time, or their share of those kept
};

class HeavySelector final : public Selector {
 public:
  HeavySelector(const HeavyOptions& options, std::int32_t history, std::shared_ptr<Ledger> ledger)
      : options_(options), history_(history), ledger_(std::move(ledger)) {}
  std::int32_t observed(std::int32_t queries) const noexcept override {
    return std::min(queries, history_);
  }
  void observe(std::span<const float> received) override;
  Status settle(Group& group, std::int32_t queries) override;
  void truncate(const Group& group, std::int32_t position) noexcept override;
  void forgot(std::int32_t tokens) override;
  std::unique_ptr<Selector> clone() const override {
    return std::make_unique<HeavySelector>(*this);
  }
  void save(const StateWriter& to) const override;
  Status load(const Group& group, const StateReader& from) override;
  std::size_t bytes() const noexcept override { return scores_.bytes(); }

 private:
  HeavyOptions options_;
  std::int32_t history_;
  std::shared_ptr<Ledger> ledger_;
  TokenScores scores_;
};

}  // namespace kvspan
