// SPDX-License-Identifier: Apache-2.0
#include "attention/scratch.h"

#include <new>

#include "base/expect.h"

namespace kvspan {
namespace {

void grow(Buffer& buffer, std::size_t floats) {
  if (buffer.bytes() >= floats * sizeof(float)) return;
  buffer = Buffer();  // returned first: the old contents are not needed
  buffer = Buffer(floats * sizeof(float), MemoryKind::kFullRank, nullptr);
}

}  // namespace

void AttentionScratch::prepare(const AttentionPlan& plan, int threads) noexcept {
  constexpr std::size_t kLine = Buffer::kAlignment / sizeof(float);
  work_stride_ = (plan.work_floats() + kLine - 1) / kLine * kLine;  // no line shared by threads
  state_floats_ = plan.state_floats();
  ready_ = false;
  // An exception must not leave the leader while the others wait for it at the barrier.
  try {
    grow(work_, work_stride_ * static_cast<std::size_t>(threads));
    grow(partials_, plan.partial_floats());
  } catch (const std::bad_alloc&) {
    return;
  }
  if (plan.chunks > 1) {
    KVSPAN_EXPECT(plan.heads * plan.tiles <= kMaxTiles, "chunks are several only for few items");
    for (std::int32_t i = 0; i < plan.heads * plan.tiles; ++i) {
      done_[i].store(0, std::memory_order_relaxed);
    }
  }
  ready_ = true;
}

}  // namespace kvspan
