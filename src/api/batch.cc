// SPDX-License-Identifier: Apache-2.0
#include "kvspan/batch.h"

#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "api/sequence_shares.h"
#include "base/copy_status.h"
#include "base/help_wanted.h"

namespace kvspan {
namespace {

using Scratch = std::unique_ptr<AttentionScratch, void (*)(AttentionScratch*)>;

// What a thread needs to attend to a sequence alone.
struct LoneThread {
  Scratch scratch = make_attention_scratch();
  TeamState team;
  HelpWanted help;  // of threads that have attended to theirs
  std::optional<Error> error;
};

// The two phases of a layer's step. Attention may write where rows of any sequence lie, so it
// begins when all of them have been stored.
enum class Phase { kStore, kAttend };

Status step_one(Phase phase, KvCache& cache, int layer, const SequenceStep& part,
                AttentionScratch& scratch, Team& team) {
  if (phase == Phase::kStore) {
    return part.stores ? cache.append(layer, part.rows, team) : Status();
  }
  if (Status status = cache.attend(layer, part.queries, part.out, scratch, team); !status) {
    return status;
  }
  return part.settles ? cache.settle(layer, team) : Status();
}

}  // namespace

struct BatchMemory::State {
  Scratch scratch = make_attention_scratch();
  std::vector<std::unique_ptr<LoneThread>> alone;
  std::atomic<bool> failed{false};  // some thread alone, since the step began
  Status outcome;                   // of a step in which one has
};

BatchMemory::BatchMemory() : state_(std::make_unique<State>()) {}
BatchMemory::~BatchMemory() = default;
BatchMemory::BatchMemory(BatchMemory&&) noexcept = default;
BatchMemory& BatchMemory::operator=(BatchMemory&&) noexcept = default;

struct SequenceBatch::Plan {
  BatchMemory::State* memory = nullptr;
  int threads = 1;
  std::vector<SequenceShare> sequences;  // those that threads take whole come first
  std::size_t whole = 0;
};

SequenceBatch::SequenceBatch(std::span<const SequenceTokens> sequences, int threads,
                             BatchMemory& memory)
    : plan_(std::make_unique<Plan>()) {
  plan_->memory = memory.state_.get();
  plan_->threads = threads;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    plan_->sequences.push_back({sequences[i].cache, sequences[i].tokens, i});
  }
  plan_->whole = share_out(plan_->sequences, threads);
  auto& alone = plan_->memory->alone;
  while (plan_->whole > 0 && alone.size() < static_cast<std::size_t>(threads)) {
    alone.push_back(std::make_unique<LoneThread>());
  }
}

SequenceBatch::SequenceBatch(SequenceBatch&&) noexcept = default;
SequenceBatch::~SequenceBatch() = default;

std::size_t SequenceBatch::whole() const noexcept {
  return plan_->whole;
}

Status SequenceBatch::step(int layer, const std::function<SequenceStep(std::size_t)>& part_of,
                           Team& team) {
  Plan& plan = *plan_;
  BatchMemory::State& memory = *plan.memory;
  const std::size_t whole = team.size() == plan.threads ? plan.whole : 0;
  std::optional<Error> error;  // of what all members do together: the same for each
  for (const Phase phase : {Phase::kStore, Phase::kAttend}) {
    if (whole > 0) {
      // Sequences that this thread takes whole. Its first failure stays with it: other threads know
      // nothing of it yet.
      LoneThread& self = *memory.alone[static_cast<std::size_t>(team.index())];
      Team lone(self.team, 0, 1, &self.help);
      for (std::size_t i = 0; i < whole && !self.error; ++i) {
        if (taker(i, team.size()) != team.index()) continue;
        const SequenceShare& of = plan.sequences[i];
        Status status = step_one(phase, *of.cache, layer, part_of(of.number), *self.scratch, lone);
        if (status) continue;
        self.error = std::move(status).error();
        memory.failed.store(true, std::memory_order_relaxed);
      }
      // Who is done helps those who attend alone.
      team.barrier([&] {
        bool helped = false;
        for (const auto& thread : memory.alone) helped |= thread->help.help();
        return helped;
      });
    }
    for (std::size_t i = whole; i < plan.sequences.size() && !error; ++i) {
      const SequenceShare& of = plan.sequences[i];
      Status status = step_one(phase, *of.cache, layer, part_of(of.number), *memory.scratch, team);
      if (!status) error = std::move(status).error();
    }
    if (whole < plan.sequences.size()) team.barrier();
  }
  if (!error && !memory.failed.load(std::memory_order_relaxed)) return {};
  if (team.leader()) {
    for (const auto& thread : memory.alone) {
      if (thread->error && !error) error = std::move(thread->error);
      thread->error.reset();
    }
    memory.outcome = *std::move(error);
  }
  team.barrier();
  Status outcome = copy_of(memory.outcome);
  if (team.leader()) memory.failed.store(false, std::memory_order_relaxed);
  team.barrier();  // keeps the outcome in place until everybody has read it
  return outcome;
}

}  // namespace kvspan
