// SPDX-License-Identifier: Apache-2.0
// Rows of a study that were never measured, for tests of what is concluded from them.
#pragma once

#include <cmath>
#include <string>

#include "base/random.h"
#include "eval/study/study_rows.h"

namespace kvspan::testing {

constexpr std::int32_t kContext = 2048;

struct Invented {
  std::string group, family;
  std::string label{};
  double bits = 4.0;
  double dppl_pct = 0.0;  // mean over all positions
  double kl = 0.01;
  double spread = 0.1;  // of a block's numbers, as a share of them
  double growth = 0.0;  // of log(KL) with log2(position)
  std::uint64_t seed = 1;
};

inline StudyRow invent(const Invented& from) {
  StudyRow row;
  row.group = from.group;
  row.family = from.family;
  row.label = from.label;
  row.rank_share = 0.25;
  row.measured.recipe = from.family + ":" + from.group + "," + std::to_string(from.bits);
  row.measured.tokens = kContext;
  row.measured.kv_bytes_full = 1 << 20;
  row.measured.kv_bytes = static_cast<std::uint64_t>(from.bits / 16.0 * (1 << 20));
  const std::int32_t first = from.group == "length" ? 0 : kContext / 2;
  Random random(from.seed);
  double sum_nll = 0.0, sum_kl = 0.0;
  for (std::int32_t at = first; at < kContext; at += PositionBlock::kPositions) {
    PositionBlock block{0, at, PositionBlock::kPositions, 0.0, 0.0};
    const double length = std::log2((at + 16.0) / kContext);
    block.nll_diff = std::log1p(from.dppl_pct / 100.0) * (1.0 + from.spread * random.normal());
    block.kl = from.kl * std::exp(from.growth * length + from.spread * random.normal() -
                                  0.5 * from.spread * from.spread);  // so that kl is the mean
    row.measured.blocks.push_back(block);
    if (at < kContext / 2) continue;
    sum_nll += block.nll_diff;
    sum_kl += block.kl;
  }
  const double blocks = kContext / 2 / PositionBlock::kPositions;
  row.measured.figures.positions = kContext / 2;
  row.measured.compressed_positions = kContext / 2;
  row.measured.figures.dppl_pct = 100.0 * std::expm1(sum_nll / blocks);
  row.measured.figures.kl = sum_kl / blocks;
  return row;
}

}  // namespace kvspan::testing
