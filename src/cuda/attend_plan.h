// SPDX-License-Identifier: Apache-2.0
// How an attention call is cut: which positions each query sees, where, and how many blocks work on
// each. Plain arithmetic; no device is needed to test it.
#pragma once

#include <cstdint>
#include <span>

#include "cuda/attend_call.h"

namespace kvspan::cuda {

// Of a sequence and layer: [0, sink) full rank, [sink, coded) coded, [coded, tokens) full rank;
// coded <= sink: nothing is coded.
struct Extent {
  std::int32_t sink = 0, coded = 0, tokens = 0;
};

// Positions that a query at `position` sees; window 0: all up to its own.
void set_ranges(const Extent& extent, std::int32_t position, std::int32_t window, AttendItem& item);

struct PlanLimits {
  int processors = 1;
  int blocks_at_once = 1;                    // of the attention kernel on each
  int step_tokens = kTileTokens, teams = 1;  // of the kernel
  std::int64_t anchors = 0, means = 0, parts = 0,
               row_parts = 0;  // that working memory has room for
};

// Fills in all counts of the items, whose ranges are set, and of the plan of a call; items beyond
// the first returned number are to be left for another call. At least 1 unless the first alone does
// not fit: 0.
int plan_call(const PlanLimits& limits, std::span<AttendItem> items, const AttendCall& call,
              AttendPlan& plan);

// The largest plan that launches can work on: those of a recorded step also fit later plans.
struct PlanCapacity {
  std::int32_t items = 0, parts = 0, item_parts = 0, row_parts = 0,
               item_row_parts = 0;  // item_: of one, at most
  std::int32_t move_tiles = 0, fold_tiles = 0;
  bool few_anchors = true;  // queries are moved to kMoveAnchors at once
  std::int32_t row_warps = 1;

  static PlanCapacity of(const AttendPlan& plan);
  bool holds(const PlanCapacity& other) const;
  // For steps to come, of which one may have as many parts as `most`.
  PlanCapacity with_spare(std::int32_t most) const;
};

// What plan_call may ask for with `tokens` coded tokens in all and up to kMaxItems items.
PlanLimits limits_for(std::int64_t tokens, int anchor, int processors, int blocks_at_once,
                      int step_tokens, int teams);

}  // namespace kvspan::cuda
