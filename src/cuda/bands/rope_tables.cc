// SPDX-License-Identifier: Apache-2.0
#include "cuda/bands/rope_tables.h"

#include "cuda/attend_constants.h"
#include "cuda/bands/bands_operands.h"

namespace kvspan::cuda {

Result<const RopeTable*> RopeTables::find(const Rope& rope, std::int32_t anchor) {
  for (const RopeTable& table : tables_) {
    if (table.rope == rope && table.anchor == anchor) return &table;
  }
  RopeTable table;
  table.rope = rope;
  table.anchor = anchor;
  // The middle of the last block may lie beyond the last token.
  const std::int32_t count = (max_tokens_ + anchor) / kTurnStep + 1;
  const std::vector<float> turns = turn_table(rope, 0, kTurnStep, count);
  const std::vector<float> offsets = turn_table(rope, -anchor / 2, 1, anchor);
  KVSPAN_TRY(table.turns, DeviceMemory::copy_of<float>(turns));
  KVSPAN_TRY(table.offsets, DeviceMemory::copy_of<float>(offsets));
  tables_.push_back(std::move(table));
  return &tables_.back();
}

std::size_t RopeTables::bytes() const noexcept {
  std::size_t sum = 0;
  for (const RopeTable& table : tables_) {
    sum += table.turns.bytes() + table.offsets.bytes();
  }
  return sum;
}

}  // namespace kvspan::cuda
