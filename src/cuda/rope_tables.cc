// SPDX-License-Identifier: Apache-2.0
#include "cuda/rope_tables.h"

#include "cuda/attend_constants.h"
#include "cuda/bands_operands.h"

namespace kvspan::cuda {

Result<const RopeTable*> RopeTables::find(const Rope& rope, std::int32_t anchor) {
  for (const RopeTable& table : tables_) {
    if (table.rope == rope && table.anchor == anchor) return &table;
  }
  RopeTable table;
  table.rope = rope;
  table.anchor = anchor;
  // The middle of the last block may lie beyond the last token.
  table.count = (max_tokens_ + anchor) / kTurnStep + 1;
  const auto pairs = rope.angles.size(), count = static_cast<std::size_t>(table.count);
  const std::vector<float> turns = turn_table(rope, 0, kTurnStep, table.count);
  std::vector<float> by_pair(turns.size());
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < pairs; ++j) {
      for (std::size_t k = 0; k < 2; ++k) {
        by_pair[(j * count + i) * 2 + k] = turns[(i * pairs + j) * 2 + k];
      }
    }
  }
  const std::vector<float> offsets = turn_table(rope, -anchor / 2, 1, anchor);
  KVSPAN_TRY(table.turns, DeviceMemory::copy_of<float>(turns));
  KVSPAN_TRY(table.turns_by_pair, DeviceMemory::copy_of<float>(by_pair));
  KVSPAN_TRY(table.offsets, DeviceMemory::copy_of<float>(offsets));
  tables_.push_back(std::move(table));
  return &tables_.back();
}

std::size_t RopeTables::bytes() const noexcept {
  std::size_t sum = 0;
  for (const RopeTable& table : tables_) {
    sum += table.turns.bytes() + table.turns_by_pair.bytes() + table.offsets.bytes();
  }
  return sum;
}

}  // namespace kvspan::cuda
