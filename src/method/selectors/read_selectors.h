// SPDX-License-Identifier: Apache-2.0
// Selectors that keep all tokens and read some: single queries only, blocks of a prompt read all.
//     quest     pages of tokens with the least and largest value of each key coordinate; the pages
//               whose bound sum_i max(q_i min_i, q_i max_i) is largest are read
//     shadowkv  chunks with their mean key as landmark; those whose landmark scores highest are
//     read,
//               and always the chunks that their landmark matches worst
// Pages are of positions, from that of the sequence's first token on, wherever their tokens are stored. The last tokens, not yet part of a
// page, are always read. Scores are of the group: the largest over its query heads. Sources: Tang
// et al. 2024; Sun et al. 2024 (values stay in memory here: there is nowhere to offload them to).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/memory.h"
#include "method/selectors/selector.h"
#include "recipe/value.h"

namespace kvspan {

struct ReadOptions {
  Amount keep;                // tokens read
  std::int32_t page = 16;     // tokens of a page or chunk
  bool landmarks = false;     // shadowkv
  std::int32_t outliers = 0;  // chunks always read
  std::int32_t recent = 0;    // last tokens always read
};

class ReadSelector final : public Selector {
 public:
  ReadSelector(const ReadOptions& options, std::shared_ptr<Ledger> ledger);
  ReadSelector(const ReadSelector& other);

  Status settle(Group& group, std::int32_t queries) override;
  bool choose(const Group& group, const Queries& queries,
              std::vector<std::uint8_t>& keep) const override;
  void truncate(const Group& group, std::int32_t position) noexcept override;
  // Pages are of positions, and stay.
  void forgot(std::int32_t) override {}
  std::unique_ptr<Selector> clone() const override { return std::make_unique<ReadSelector>(*this); }
  std::size_t bytes() const noexcept override;
  void save(const StateWriter& to) const override;
  Status load(const Group& group, const StateReader& from) override;

 private:
  // The page of the sequence's first token; earlier ones have no summary.
  std::int32_t first_page(const Group& group) const noexcept {
    return group.extent().first / options_.page;
  }
  // Pages all of whose positions are before `position`, from the first on.
  std::int32_t pages_before(const Group& group, std::int32_t position) const noexcept {
    return std::max(0, position / options_.page - first_page(group));
  }
  // Makes room for `pages` pages of `floats` numbers each; pages that are there stay.
  void reserve(std::int32_t pages, std::size_t floats);
  std::size_t page_floats(const Group& group) const noexcept;
  void summarise(const RowBlock& rows, std::size_t first, std::size_t page, float* summary,
                 float* mismatch) const;
  float score(const Group& group, const Queries& queries, const float* summary) const;

  ReadOptions options_;
  std::shared_ptr<Ledger> ledger_;
  Buffer summaries_;   // [pages] of [2][heads][key_dim], or [heads][key_dim] of landmarks
  Buffer mismatches_;  // [pages], landmarks only: the least cosine of a key to its landmark
  std::int32_t pages_ = 0;
  std::size_t page_floats_ = 0;  // as of the last page made
};

}  // namespace kvspan
