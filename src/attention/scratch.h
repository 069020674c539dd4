// SPDX-License-Identifier: Apache-2.0
// Working memory of attend: the call's plan, one area per thread, the partial states of items, and
// for each block a count of the chunks finished. Bounded by the constants of attention/segments/plan.h,
// whatever the number of tokens; grows to the largest call and stays.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "attention/segments/plan.h"
#include "base/memory.h"
#include "kvspan/result.h"

namespace kvspan {

// What a kind of store works in (attention/token_store.h); kept for the next call.
class ScratchPart {
 public:
  virtual ~ScratchPart() = default;
  virtual std::size_t bytes() const noexcept = 0;
};

class AttentionScratch {
 public:
  AttentionScratch() = default;

  // Plans a call of `threads` members and makes room for it, counts at zero; by the leader, before
  // a barrier. The outcome is ready(), for every member to read after the barrier. `as_series`:
  // the call reads every segment as part of a series (attention/coded/coded_series.h), coded or not.
  void prepare(const LayerShape& layer, HeadGroups groups,
               std::span<const std::int32_t> query_positions, int threads,
               bool as_series = false) noexcept;
  bool ready() const noexcept { return ready_; }
  const AttentionPlan& plan() const noexcept { return plan_; }

  float* work(int thread) noexcept {
    return work_.as<float>() + static_cast<std::size_t>(thread) * work_stride_;
  }
  float* partial(std::size_t item) noexcept { return partials_.as<float>() + item * state_floats_; }
  // Counts one more finished chunk of `sum`; true for the last, which then sees all of them.
  bool finish_chunk(std::int32_t sum, std::int32_t chunks) noexcept {
    return done_[sum].fetch_add(1, std::memory_order_acq_rel) + 1 == chunks;
  }

  // Room for `count` log-sum-exps, where a call's parts meet; by one thread. Throws std::bad_alloc.
  float* lse(std::size_t count);

  std::size_t bytes() const noexcept {
    std::size_t sum = work_.bytes() + partials_.bytes() + lse_.bytes();
    for (const auto& held : parts_) sum += held->bytes();
    return sum;
  }

  // Working memory of a kind of its own: prepare(part), by the leader before a barrier; then part()
  // where ready().
  template <class Part, class Prepare>
  void prepare_part(const Prepare& prepare) noexcept {
    ready_ = false;
    try {
      if (find<Part>() == nullptr) parts_.push_back(std::make_unique<Part>());
      prepare(*find<Part>());
    } catch (const std::bad_alloc&) {
      return;
    }
    ready_ = true;
  }
  template <class Part>
  Part& part() noexcept {
    return *find<Part>();
  }

 private:
  template <class Part>
  Part* find() noexcept {
    for (const auto& held : parts_) {
      if (auto* found = dynamic_cast<Part*>(held.get())) return found;
    }
    return nullptr;
  }

  // Chunks are several only while items are few.
  static constexpr std::int32_t kMaxSums = kMaxItems;

  AttentionPlan plan_;
  Buffer work_;
  Buffer partials_;
  Buffer lse_;
  std::vector<std::unique_ptr<ScratchPart>> parts_;
  std::size_t work_stride_ = 0;
  std::size_t state_floats_ = 0;
  bool ready_ = false;
  std::atomic<std::int32_t> done_[kMaxSums] = {};
};

// The most that bytes() can become by calls of up to `threads` members on lists of this layer,
// however many tokens they hold and queries they ask.
std::size_t most_scratch_bytes(const LayerShape& layer, int threads) noexcept;

}  // namespace kvspan
