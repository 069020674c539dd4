// SPDX-License-Identifier: Apache-2.0
// Baselines that drop tokens and code none.
//     window, streaming   the last `size` tokens stay, and the first `sink`
//     prune               of the tokens between sink and recent, those with the largest keys
// Sources: Xiao et al. 2023 (StreamingLLM); Holographic Spectral Compression, 3.3.
#pragma once

#include <cstdint>
#include <memory>

#include "method/policies/policy.h"
#include "method/selectors/token_scores.h"
#include "recipe/value.h"

namespace kvspan {

class WindowPolicy final : public Policy {
 public:
  explicit WindowPolicy(std::int32_t size) : size_(size) {}
  Status settle(Group& group) override;
  std::unique_ptr<Policy> clone() const override { return std::make_unique<WindowPolicy>(*this); }
  Status save(const StateWriter& to) const override;
  Status load(Group& group, const StateReader& from) override;

 private:
  std::int32_t size_;
};

class PrunePolicy final : public Policy {
 public:
  PrunePolicy(const Amount& keep, std::int32_t recent) : keep_(keep), recent_(recent) {}
  Status settle(Group& group) override;
  void truncate(const Group& group, std::int32_t position) noexcept override;
  // Its norms are of the tokens behind the sink, and it keeps what it chose.
  std::int32_t forgettable(const Group&) const override { return 0; }
  std::unique_ptr<Policy> clone() const override { return std::make_unique<PrunePolicy>(*this); }
  std::size_t sketch_bytes() const noexcept override { return norms_.bytes(); }
  Status save(const StateWriter& to) const override;
  Status load(Group& group, const StateReader& from) override;

 private:
  // Rows that are weighed against each other at a time, so that dropping costs little per token.
  static constexpr std::int32_t kUnit = 64;
  Status settle_unit(Group& group);

  Amount keep_;
  std::int32_t recent_;
  TokenScores norms_;      // of the rows between sink and recent that are held
};

}  // namespace kvspan
