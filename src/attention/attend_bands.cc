// SPDX-License-Identifier: Apache-2.0
#include "attention/attend_bands.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "attention/bands_cut.h"
#include "attention/bands_runner.h"
#include "attention/softmax_state.h"
#include "base/fail.h"
#include "cache/dot.h"

namespace kvspan {
namespace {

// Of partial results, whole row blocks or not.
std::size_t state_stride(const BandsCut& cut, const BandsCode& values) {
  return bands_state_floats(static_cast<std::size_t>(cut.row_positions * cut.query_heads), values);
}

// A row and its log-sum-exp become those of both parts of the tokens together.
void merge_row(const float* added, float added_lse, std::size_t dim, float* row, float* lse) {
  const double a = *lse, b = added_lse, most = std::max(a, b);
  if (!(most > -std::numeric_limits<double>::infinity())) return;
  const double wa = std::exp(a - most), wb = std::exp(b - most);
  const auto fa = static_cast<float>(wa / (wa + wb)), fb = static_cast<float>(wb / (wa + wb));
  for (std::size_t i = 0; i < dim; ++i) row[i] = fa * row[i] + fb * added[i];
  *lse = static_cast<float>(most + std::log(wa + wb));
}

struct Output {
  const TensorView<float, 3>& rows;
  const TensorView<float, 2>& lse;
  bool adds;
};

// Merges the chunks of row r of a block in their order and writes the row.
void write_row(const BandsCode& code, const BandsCut& cut, std::int32_t block, std::int32_t r,
               const float* states, const Output& out, std::vector<float>& memory) {
  const std::int32_t rows = cut.rows_of(block);
  const std::size_t state_floats = state_stride(cut, code);
  const auto places = static_cast<std::size_t>(code.places());
  const auto dim = static_cast<std::size_t>(code.value_dim());
  memory.assign(places + dim, 0.0f);
  float* const c = memory.data();
  float* const row = c + places;
  SoftmaxState whole;
  float half = 0.0f;
  for (std::int32_t k = 0; k < cut.chunks; ++k) {
    const float* state = states + static_cast<std::size_t>(k) * state_floats;
    const MergeFactors f = merge_into(whole, {state[r], state[rows + r]});
    const float* o = state + 3 * rows + static_cast<std::size_t>(r) * places;
    half = half * f.kept + state[2 * rows + r] * f.added;
    for (std::size_t i = 0; i < places; ++i) c[i] = c[i] * f.kept + o[i] * f.added;
  }
  const auto [head, position, query_head] = cut.row(block, r);
  const float inverse = whole.sum > 0.0f ? 1.0f / whole.sum : 0.0f;
  for (std::size_t i = 0; i < places; ++i) {
    c[i] = code.steps()[i] * (c[i] + 0.5f * half) * inverse;
  }
  const float* b = code.value_rows(head);
  const float* mean = code.value_mean(head);
  for (std::size_t j = 0; j < dim; ++j, b += places) {
    row[j] = (whole.sum > 0.0f ? mean[j] : 0.0f) + dot(b, c, places);
  }
  float* to = out.rows.row(position, query_head);
  float* lse = out.lse.row(position) + query_head;
  if (out.adds) {
    merge_row(row, whole.log_sum_exp(), dim, to, lse);
  } else {
    std::copy_n(row, dim, to);
    *lse = whole.log_sum_exp();
  }
}

}  // namespace

void BandsScratch::prepare(int threads, std::size_t work_floats, std::size_t partial_floats) {
  stride_ = (work_floats + 15) / 16 * 16;
  const std::size_t work = stride_ * static_cast<std::size_t>(threads) * sizeof(float);
  if (work_.bytes() < work) work_ = Buffer(work, MemoryKind::kFullRank, nullptr);
  const std::size_t partial = partial_floats * sizeof(float);
  if (partials_.bytes() < partial) partials_ = Buffer(partial, MemoryKind::kFullRank, nullptr);
}

float* BandsScratch::lse(std::size_t count) {
  if (lse_.bytes() < count * sizeof(float)) {
    lse_ = Buffer(count * sizeof(float), MemoryKind::kFullRank, nullptr);
  }
  return lse_.as<float>();
}

Status attend_bands(const LayerShape& layer, const BandsStore& keys, const BandsStore& values,
                    const Queries& queries, const TensorView<float, 3>& out,
                    const TensorView<float, 2>& lse, bool adds, BandsScratch& scratch, Team& team) {
  const Output output{out, lse, adds};
  const BandsCut cut(queries, keys);
  const std::size_t state_floats = state_stride(cut, values.code());
  if (team.leader()) {
    try {
      scratch.prepare(team.size(), BandsRunner::work_floats(keys, values, cut),
                      cut.chunks > 1 ? state_floats * static_cast<std::size_t>(cut.items()) : 0);
      scratch.ready = true;
    } catch (const std::bad_alloc&) {
      scratch.ready = false;
    }
  }
  team.barrier();
  if (!scratch.ready) {
    return fail(ErrorCode::kOutOfBudget, "no memory to attend to {} queries", cut.positions);
  }
  BandsRunner runner(layer, keys, values, queries, cut, scratch.work(team.index()));
  std::vector<float> memory;
  for (int i; (i = team.take()) < cut.items();) {
    const std::int32_t block = i / cut.chunks, chunk = i % cut.chunks;
    float* state = cut.chunks > 1 ? scratch.partials() + static_cast<std::size_t>(i) * state_floats
                                  : runner.state();
    runner.run(block, chunk, state);
    for (std::int32_t r = 0; cut.chunks == 1 && r < cut.rows_of(block); ++r) {
      write_row(values.code(), cut, block, r, state, output, memory);
    }
  }
  team.barrier();
  if (cut.chunks == 1) return {};
  // Row by row, as often there is but one block.
  const std::int32_t block_rows = cut.rows_of(0);
  for (int i; (i = team.take()) < cut.positions * cut.query_heads;) {
    const std::int32_t block = i / block_rows;
    write_row(values.code(), cut, block, i % block_rows,
              scratch.partials() + static_cast<std::size_t>(block) *
                                       static_cast<std::size_t>(cut.chunks) * state_floats,
              output, memory);
  }
  team.barrier();
  return {};
}

}  // namespace kvspan
