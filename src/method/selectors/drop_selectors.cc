// SPDX-License-Identifier: Apache-2.0
#include "method/selectors/drop_selectors.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "method/selectors/largest.h"
#include "method/state_bytes.h"

namespace kvspan {
namespace {

std::vector<float> pooled(std::span<const float> scores, std::int32_t width, bool mean) {
  const auto n = static_cast<std::ptrdiff_t>(scores.size());
  const std::ptrdiff_t reach = width / 2;
  std::vector<float> out(scores.size());
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    const std::ptrdiff_t from = std::max<std::ptrdiff_t>(0, i - reach);
    const std::ptrdiff_t to = std::min(n - 1, i + reach);
    float sum = 0.0f, most = 0.0f;
    for (std::ptrdiff_t j = from; j <= to; ++j) {
      sum += scores[static_cast<std::size_t>(j)];
      most = std::max(most, scores[static_cast<std::size_t>(j)]);
    }
    out[static_cast<std::size_t>(i)] = mean ? sum / static_cast<float>(width) : most;
  }
  return out;
}

// The first tokens that the method keeps for good stay whatever they received.
void keep_sink(const Group& group, std::vector<std::uint8_t>& keep) {
  const auto sink = std::min(keep.size(), static_cast<std::size_t>(group.sink()));
  std::fill_n(keep.begin(), sink, std::uint8_t{1});
}

}  // namespace

void SnapkvSelector::observe(std::span<const float> received) {
  TokenScores scores;
  scores.add(received, ledger_);
  scores_ = std::move(scores);
  prompt_ = static_cast<std::int32_t>(received.size());
}

Status SnapkvSelector::settle(Group& group, std::int32_t queries) {
  if (prompt_ == 0 || queries != 1) return {};
  const std::int32_t window = std::min(options_.window, prompt_);
  const std::int64_t keep = std::max<std::int64_t>(options_.keep.resolve(prompt_) - window, 0);
  const std::span<const float> before =
      scores_.values().first(static_cast<std::size_t>(prompt_ - window));
  std::vector<std::uint8_t> kept = largest(pooled(before, options_.pool, options_.mean), keep);
  keep_sink(group, kept);
  group.select(0, kept);
  scores_ = {};
  prompt_ = 0;
  return {};
}

void SnapkvSelector::truncate(const Group& group, std::int32_t position) noexcept {
  const std::int32_t tokens = group.list().index_of(position);
  scores_.truncate(tokens);
  prompt_ = std::min(prompt_, tokens);
}

void SnapkvSelector::forgot(std::int32_t tokens) {
  scores_.drop_first(tokens);
  prompt_ = std::max(0, prompt_ - tokens);
}

void SnapkvSelector::save(const StateWriter& to) const {
  scores_.save(to.out);  // one for each token of the prompt
}

Status SnapkvSelector::load(const Group& group, const StateReader& from) {
  KVSPAN_CHECK_OK(scores_.load("attention received", group.list().tokens(), from.in, from.ledger));
  prompt_ = static_cast<std::int32_t>(scores_.values().size());
  return {};
}

void HeavySelector::observe(std::span<const float> received) {
  scores_.add(received, ledger_);
}

Status HeavySelector::settle(Group& group, std::int32_t) {
  // Shares are of all tokens so far, dropped ones included.
  const std::int32_t seen = group.extent().next - group.extent().first;
  const std::int32_t held = group.list().tokens();
  const std::int64_t budget = options_.keep.resolve(seen);
  const std::int64_t step = std::max<std::int64_t>(options_.drop.resolve(budget), 1);
  if (held < budget + step) return {};
  const std::int64_t recent = std::min(options_.recent.resolve(seen), budget);
  const auto older = static_cast<std::size_t>(std::max<std::int64_t>(held - recent, 0));
  std::vector<float> scores(older, 0.0f);  // 0 for those that no query has looked at yet
  std::copy_n(scores_.values().begin(), std::min(older, scores_.values().size()), scores.begin());
  std::vector<std::uint8_t> keep = largest(scores, budget - recent);
  keep_sink(group, keep);
  group.select(0, keep);
  scores_.select(0, keep);
  if (options_.history_only) scores_.reset();
  return {};
}

void HeavySelector::truncate(const Group& group, std::int32_t position) noexcept {
  scores_.truncate(group.list().index_of(position));
}

void HeavySelector::forgot(std::int32_t tokens) {
  scores_.drop_first(tokens);
}

void HeavySelector::save(const StateWriter& to) const {
  scores_.save(to.out);
}

Status HeavySelector::load(const Group& group, const StateReader& from) {
  return scores_.load("attention received", group.list().tokens(), from.in, from.ledger);
}

}  // namespace kvspan
