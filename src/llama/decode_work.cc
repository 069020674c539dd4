// SPDX-License-Identifier: Apache-2.0
#include "llama/decode_work.h"

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

Result<Ubatch> make_ubatch(std::span<const BatchRow> rows, int threads, BatchMemory& memory) {
  std::vector<std::int32_t> positions;
  std::vector<SequenceRows> sequences;
  std::set<std::int32_t> seen;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    positions.push_back(rows[i].position);
    const auto at = static_cast<std::int32_t>(i);
    if (i > 0 && rows[i].sequence == rows[i - 1].sequence) {
      sequences.back().end = at + 1;
      continue;
    }
    if (!seen.insert(rows[i].sequence).second) {
      return fail(ErrorCode::kInvalidArgument,
                  "the batch has tokens of sequence {} in several places; they have to follow each "
                  "other",
                  rows[i].sequence);
    }
    sequences.push_back({rows[i].cache, at, at + 1});
  }
  std::vector<SequenceTokens> tokens;
  for (const SequenceRows& of : sequences) tokens.push_back({of.cache, of.end - of.begin});
  return Ubatch{std::move(positions), std::move(sequences), SequenceBatch(tokens, threads, memory)};
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

}  // namespace

Result<std::vector<Ubatch>> cut_batch(std::span<const BatchRow> rows, std::size_t most,
                                      BatchCut cut, int threads, BatchMemory& memory) {
  std::vector<Ubatch> ubatches;
  if (cut == BatchCut::kBySequences) {
    for (const auto& part : equal_parts(rows, most)) {
      KVSPAN_TRY(auto ubatch, make_ubatch(part, threads, memory));
      ubatches.push_back(std::move(ubatch));
    }
    return ubatches;
  }
  for (std::size_t i = 0; i < rows.size(); i += most) {
    KVSPAN_TRY(auto ubatch,
               make_ubatch(rows.subspan(i, std::min(most, rows.size() - i)), threads, memory));
    ubatches.push_back(std::move(ubatch));
  }
  return ubatches;
}

void attend_node(DecodeWork& work, int layer, const NodeRows& rows, int member, int size) {
  // Every thread sees the same state here: it changes only behind the last barrier.
  if (work.error || work.current >= work.ubatches.size()) return;
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  Team team(work.team, member, size);
  Ubatch& ubatch = work.ubatches[work.current];
  const auto part_of = [&](std::size_t i) {
    const SequenceRows& of = ubatch.sequences[i];
    const auto positions = std::span(ubatch.positions)
                               .subspan(static_cast<std::size_t>(of.begin),
                                        static_cast<std::size_t>(of.end - of.begin));
    SequenceStep step;
    step.stores = rows.stores;
    step.settles = rows.settles;
    if (rows.stores) step.rows = {part(rows.keys, of), part(rows.values, of), positions};
    step.queries = {part(rows.queries, of), positions};
    step.out = part(rows.out, of);
    return step;
  };
  // Of the rows that a decode ends with.
  const bool sampled = team.leader() && work.certificates.wants(layer) && work.current + 1 == work.ubatches.size();
  const std::size_t sample = sampled ? work.certificates.choose(ubatch.sequences.size()) : 0;
  if (sampled) work.certificates.keep(part_of(sample).queries);
  Status status = ubatch.batch.step(layer, part_of, team);
  if (!team.leader()) return;
  if (status && sampled) work.certificates.take(*ubatch.sequences[sample].cache);
  if (!status) work.error = std::move(status).error();
  work.seconds += std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace kvspan
