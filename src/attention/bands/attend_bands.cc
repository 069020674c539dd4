// SPDX-License-Identifier: Apache-2.0
#include "attention/bands/attend_bands.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "attention/bands/bands_cut.h"
#include "attention/bands/bands_runner.h"
#include "attention/softmax_state.h"
#include "base/fail.h"
#include "base/help_wanted.h"

namespace kvspan {
namespace {

// Of partial results, whole row blocks or not.
std::size_t state_floats(const BandsCut& cut, const BandsCode& values) {
  return BandsStateLayout(cut.row_positions * cut.query_heads, values).floats;
}

struct Output {
  const TensorView<float, 3>& rows;
  const TensorView<float, 2>& lse;
  bool adds;
};

// Merges the chunks of row r of a block in their order into the first: its coefficients, and in
// place of maximum and sum what the output row so far and the new one count.
void merge_row(const BandsCode& code, const BandsCut& cut, std::int32_t block, std::int32_t r,
               float* states, const Output& out) {
  const std::int32_t rows = cut.rows_of(block);
  const std::size_t floats = state_floats(cut, code);
  const BandsStateLayout layout(rows, code);
  const std::size_t at = layout.coefficients + static_cast<std::size_t>(r) * layout.stride;
  const auto places = static_cast<std::size_t>(code.places());
  float* const c = states + at;
  SoftmaxState whole{states[r], states[rows + r]};
  float half = states[2 * rows + r];
  for (std::int32_t k = 1; k < cut.chunks; ++k) {
    const float* state = states + static_cast<std::size_t>(k) * floats;
    const MergeFactors f = merge_into(whole, {state[r], state[rows + r]});
    const float* o = state + at;
    half = half * f.kept + state[2 * rows + r] * f.added;
    for (std::size_t i = 0; i < places; ++i) c[i] = c[i] * f.kept + o[i] * f.added;
  }
  const float inverse = whole.sum > 0.0f ? 1.0f / whole.sum : 0.0f;
  for (std::size_t i = 0; i < places; ++i) {
    c[i] = code.steps()[i] * (c[i] + 0.5f * half) * inverse;
  }
  const BandsCut::Row row = cut.row(block, r);
  const MergeFactors shares = merge_state(whole, out.adds, out.lse.row(row.position) + row.query_head);
  states[r] = shares.kept;
  states[rows + r] = shares.added;
}

// Merged rows that meet rows of B together, and numbers of a value that are written at once.
constexpr std::int32_t kRows = 4, kNumbers = 16;

// Numbers [first, last), at most kNumbers, of the merged rows of one head of a block: these rows of
// B stay in the first-level cache for all of them.
void write_numbers(const BandsCode& code, const BandsCut& cut, std::int32_t block,
                   std::int32_t head, std::int32_t first, std::int32_t last, const float* state,
                   const Output& out) {
  const AttentionKernels& kernels = attention_kernels(cpu_level());
  const std::int32_t rows = cut.rows_of(block), end = (head + 1) * (rows / code.heads());
  const BandsCode::Rows values = code.value_rows(head);
  const RowsView all{reinterpret_cast<const std::byte*>(values.numbers), code.row_stride(),
                     Element::kF16};
  const float* mean = code.value_mean(head);
  const BandsStateLayout layout(rows, code);
  float sums[kRows * kNumbers];
  for (std::int32_t from = end - rows / code.heads(); from < end; from += kRows) {
    const std::int32_t count = std::min(kRows, end - from);
    const float* c = state + layout.coefficients + static_cast<std::size_t>(from) * layout.stride;
    kernels.score_rows(c, count, code.row_stride(), all.from(first), last - first, nullptr, sums,
                       kNumbers);
    for (std::int32_t i = 0; i < count; ++i) {
      const float kept = state[from + i], added = state[rows + from + i];
      const BandsCut::Row row = cut.row(block, from + i);
      float* to = out.rows.row(row.position, row.query_head);
      for (std::int32_t j = first; j < last; ++j) {
        const float sum = values.scales[j] * sums[i * kNumbers + j - first];
        const float x = added > 0.0f ? added * (mean[j] + sum) : 0.0f;
        to[j] = kept > 0.0f ? kept * to[j] + x : x;
      }
    }
  }
}

}  // namespace

void BandsScratch::prepare(int threads, std::size_t work_floats, std::size_t partial_floats,
                           const Rope& rope) {
  stride_ = floats_in_lines(work_floats);
  const std::size_t work = stride_ * static_cast<std::size_t>(threads) * sizeof(float);
  if (work_.bytes() < work) work_ = Buffer(work, MemoryKind::kFullRank, nullptr);
  const std::size_t partial = partial_floats * sizeof(float);
  if (partials_.bytes() < partial) partials_ = Buffer(partial, MemoryKind::kFullRank, nullptr);
  if (std::cmp_less(turns_.size(), threads)) turns_.resize(static_cast<std::size_t>(threads));
  for (AnchorTurns& turns : turns_) turns.use(rope);
}

Status attend_bands(const LayerShape& layer, std::int32_t first_head, const BandsStore& keys,
                    const BandsStore& values, std::span<const std::int32_t> some,
                    const Queries& queries, const TensorView<float, 3>& out,
                    const TensorView<float, 2>& lse, bool adds, AttentionScratch& all_scratch,
                    Team& team) {
  const Output output{out, lse, adds};
  const BandsCut cut(layer, first_head, queries, keys, some);
  const std::size_t floats = state_floats(cut, values.code());
  if (team.leader()) {
    all_scratch.prepare_part<BandsScratch>([&](BandsScratch& part) {
      part.prepare(team.places(), BandsRunner::work_floats(keys, values, cut),
                   cut.chunks > 1 ? floats * static_cast<std::size_t>(cut.items()) : 0,
                   keys.code().rope());
    });
  }
  team.barrier();
  if (!all_scratch.ready()) {
    team.barrier();  // keeps that in place until everybody has read it
    return fail(ErrorCode::kOutOfBudget, "no memory to attend to {} queries", cut.positions);
  }
  BandsScratch& scratch = all_scratch.part<BandsScratch>();
  const BandsCode& code = values.code();
  const auto states_of = [&](std::int32_t block) {
    return scratch.partials() +
           static_cast<std::size_t>(block) * static_cast<std::size_t>(cut.chunks) * floats;
  };
  const std::int32_t parts = (code.value_dim() + kNumbers - 1) / kNumbers;
  const auto write_part = [&](std::int32_t block, std::int32_t i, const float* state) {
    const std::int32_t first = i % parts * kNumbers;
    write_numbers(code, cut, block, i / parts, first, std::min(first + kNumbers, code.value_dim()),
                  state, output);
  };
  with_help(team, [&](int place) {
    BandsRunner runner(layer, keys, values, queries, cut, adds ? &lse : nullptr,
                       scratch.work(place), scratch.turns(place));
    for (int i; (i = team.take()) < cut.items();) {
      const std::int32_t block = i / cut.chunks, chunk = i % cut.chunks;
      float* state = cut.chunks > 1 ? states_of(block) + static_cast<std::size_t>(chunk) * floats
                                    : runner.state();
      runner.run(block, chunk, state);
      if (cut.chunks > 1) continue;
      for (std::int32_t r = 0; r < cut.rows_of(block); ++r) {
        merge_row(code, cut, block, r, state, output);
      }
      for (std::int32_t p = 0; p < code.heads() * parts; ++p) write_part(block, p, state);
    }
  });
  team.barrier();
  if (cut.chunks == 1) return {};
  // By rows, then by parts of heads, as often there is but one block.
  const std::int32_t block_rows = cut.rows_of(0);
  for (int i; (i = team.take()) < cut.positions * cut.query_heads;) {
    merge_row(code, cut, i / block_rows, i % block_rows, states_of(i / block_rows), output);
  }
  team.barrier();
  for (int i; (i = team.take()) < cut.row_blocks * code.heads() * parts;) {
    const std::int32_t block = i / (code.heads() * parts);
    write_part(block, i % (code.heads() * parts), states_of(block));
  }
  team.barrier();
  return {};
}

}  // namespace kvspan
