// SPDX-License-Identifier: Apache-2.0
#include "llama/attention_run.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "base/fail.h"

namespace kvspan {
namespace {

template <class T>
TensorView<T, 3> part(const TensorView<T, 3>& rows, const SequenceRows& of) {
  const auto begin = static_cast<std::size_t>(of.begin), end = static_cast<std::size_t>(of.end);
  return {rows.data + begin * rows.strides[0],
          {end - begin, rows.shape[1], rows.shape[2]},
          rows.strides};
}

Result<Ubatch> make_ubatch(std::span<const BatchRow> rows, int threads) {
  Ubatch ubatch;
  std::set<std::int32_t> seen;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ubatch.positions.push_back(rows[i].position);
    const auto at = static_cast<std::int32_t>(i);
    if (i > 0 && rows[i].sequence == rows[i - 1].sequence) {
      ubatch.sequences.back().end = at + 1;
      continue;
    }
    if (!seen.insert(rows[i].sequence).second) {
      return fail(ErrorCode::kInvalidArgument,
                  "the batch has tokens of sequence {} in several places; they have to follow each "
                  "other",
                  rows[i].sequence);
    }
    ubatch.sequences.push_back({rows[i].cache, at, at + 1});
  }
  ubatch.whole = share_out(ubatch.sequences, threads);
  return ubatch;
}

// As llama_batch_allocr::split_equal does with one memory for all sequences: as many rows of every
// sequence that has some left as the one with the fewest has, one sequence after the other.
std::vector<std::vector<BatchRow>> equal_parts(std::span<const BatchRow> rows, std::size_t most) {
  std::vector<std::vector<BatchRow>> left;  // by sequence, in the order of their first rows
  for (const BatchRow& row : rows) {
    const auto found = std::find_if(left.begin(), left.end(), [&](const auto& of) {
      return of.front().sequence == row.sequence;
    });
    (found != left.end() ? *found : left.emplace_back()).push_back(row);
  }
  std::vector<std::vector<BatchRow>> parts;
  while (!left.empty()) {
    const std::size_t count = std::min(left.size(), most);
    std::size_t each = most / count;
    for (std::size_t s = 0; s < count; ++s) each = std::min(each, left[s].size());
    std::vector<BatchRow>& to = parts.emplace_back();
    for (std::size_t s = 0; s < count; ++s) {
      to.insert(to.end(), left[s].begin(), left[s].begin() + static_cast<std::ptrdiff_t>(each));
      left[s].erase(left[s].begin(), left[s].begin() + static_cast<std::ptrdiff_t>(each));
    }
    std::erase_if(left, [](const auto& of) { return of.empty(); });
  }
  return parts;
}

// The two phases of a layer's step for one sequence. Attention may write where rows of any sequence
// lie, so it begins when all of them have been stored.
enum class Phase { kStore, kAttend };

Status step(Phase phase, const SequenceRows& of, int layer, const NodeRows& rows,
            std::span<const std::int32_t> all, AttentionScratch& scratch, Team& team) {
  const auto positions =
      all.subspan(static_cast<std::size_t>(of.begin), static_cast<std::size_t>(of.end - of.begin));
  if (phase == Phase::kStore) {
    KvRows stored;
    stored.keys = part(rows.keys, of);
    stored.values = part(rows.values, of);
    stored.positions = positions;
    return of.cache->append(layer, stored, team);
  }
  KVSPAN_CHECK_OK(of.cache->attend(layer, {part(rows.queries, of), positions}, part(rows.out, of),
                                   scratch, team));
  return rows.settles ? of.cache->settle(layer, team) : Status{};
}

// The sequences that this thread takes whole. Its first failure stays with it: other threads know
// nothing of it yet.
void step_alone(AttentionRun& run, Phase phase, int layer, const NodeRows& rows, int member,
                int size) {
  const Ubatch& ubatch = run.ubatches[run.current];
  LoneThread& self = *run.alone[static_cast<std::size_t>(member)];
  Team team(self.team, 0, 1, &self.help);
  for (std::size_t i = 0; i < ubatch.whole && !self.error; ++i) {
    if (taker(i, size) != member) continue;
    Status status =
        step(phase, ubatch.sequences[i], layer, rows, ubatch.positions, *self.scratch, team);
    if (!status) self.error = std::move(status).error();
  }
}

// A step returns the same status on every thread, so all leave together.
std::optional<Error> step_together(AttentionRun& run, Phase phase, std::size_t first, int layer,
                                   const NodeRows& rows, Team& team) {
  const Ubatch& ubatch = run.ubatches[run.current];
  for (std::size_t i = first; i < ubatch.sequences.size(); ++i) {
    Status status =
        step(phase, ubatch.sequences[i], layer, rows, ubatch.positions, *run.scratch, team);
    if (!status) return std::move(status).error();
  }
  return std::nullopt;
}

}  // namespace

Result<std::vector<Ubatch>> cut_batch(std::span<const BatchRow> rows, std::size_t most,
                                      BatchCut cut, int threads) {
  std::vector<Ubatch> ubatches;
  if (cut == BatchCut::kBySequences) {
    for (const auto& part : equal_parts(rows, most)) {
      KVSPAN_TRY(auto ubatch, make_ubatch(part, threads));
      ubatches.push_back(std::move(ubatch));
    }
    return ubatches;
  }
  for (std::size_t i = 0; i < rows.size(); i += most) {
    KVSPAN_TRY(auto ubatch, make_ubatch(rows.subspan(i, std::min(most, rows.size() - i)), threads));
    ubatches.push_back(std::move(ubatch));
  }
  return ubatches;
}

void attend_node(AttentionRun& run, int layer, const NodeRows& rows, int member, int size) {
  // Every thread sees the same state here: it changes only behind the last barrier.
  if (run.error || run.current >= run.ubatches.size()) return;
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  Team team(run.team, member, size);
  const std::size_t whole = size == run.threads ? run.ubatches[run.current].whole : 0;
  std::optional<Error> error;
  for (const Phase phase : {Phase::kStore, Phase::kAttend}) {
    if (phase == Phase::kStore && !rows.stores) continue;
    if (whole > 0) {
      step_alone(run, phase, layer, rows, member, size);
      // Who is done helps those who attend alone.
      team.barrier([&] {
        bool helped = false;
        for (const auto& thread : run.alone) helped |= thread->help.help();
        return helped;
      });
    }
    if (whole == run.ubatches[run.current].sequences.size()) continue;
    if (!error) error = step_together(run, phase, whole, layer, rows, team);
    team.barrier();
  }
  if (!team.leader()) return;
  for (const auto& thread : run.alone) {
    if (thread->error && !error) error = std::move(thread->error);
    thread->error.reset();
  }
  if (error) run.error = std::move(error);
  run.seconds += std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace kvspan
