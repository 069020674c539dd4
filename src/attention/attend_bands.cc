// SPDX-License-Identifier: Apache-2.0
#include "attention/attend_bands.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "attention/bands_kernels.h"
#include "attention/item.h"
#include "attention/kernels.h"
#include "attention/softmax_state.h"
#include "base/fail.h"
#include "cache/dot.h"
#include "cache/rope.h"

namespace kvspan {
namespace {

constexpr std::int32_t kTile = BandsStore::kTileTokens;
constexpr std::int32_t kRunTiles = 4;  // tiles that one softmax step covers
constexpr std::int32_t kRunTokens = kRunTiles * kTile;
constexpr std::int32_t kChunkTiles = 32;

// The cut of a call: blocks of query rows, chunks of tiles. Depends on shapes alone.
struct Cut {
  std::int32_t query_heads, positions, row_positions, row_blocks, chunk_tiles, chunks;
  std::int32_t rows_of(std::int32_t block) const {
    return std::min(row_positions, positions - block * row_positions) * query_heads;
  }
  std::int32_t items() const { return row_blocks * chunks; }
};

Cut cut_call(const Queries& queries, std::int32_t tiles) {
  Cut cut{};
  cut.query_heads = static_cast<std::int32_t>(queries.rows.shape[1]);
  cut.positions = static_cast<std::int32_t>(queries.positions.size());
  cut.row_positions =
      std::clamp(BandsScratch::kRowBlock / cut.query_heads, 1, std::max(cut.positions, 1));
  cut.row_blocks = (cut.positions + cut.row_positions - 1) / cut.row_positions;
  // Many rows keep every thread busy; few share the tokens out.
  cut.chunk_tiles = cut.row_blocks >= 16 ? std::max(tiles, 1) : kChunkTiles;
  cut.chunks = std::max(1, (tiles + cut.chunk_tiles - 1) / cut.chunk_tiles);
  return cut;
}

// log_gain by table: one power of two for each token would cost as much as its products.
float gain_of(std::int8_t code) {
  static const std::array<float, 256> kGains = [] {
    std::array<float, 256> gains;
    for (int c = -128; c < 128; ++c) {
      gains[static_cast<std::size_t>(c + 128)] = log_gain(static_cast<std::int8_t>(c));
    }
    return gains;
  }();
  return kGains[static_cast<std::size_t>(code + 128)];
}

struct Sizes {
  std::size_t rows, dim, key_places, value_places;
  std::size_t state() const { return rows * (3 + value_places); }
  std::size_t bytes_as_floats(std::size_t bytes) const { return (bytes + 3) / 4; }
  std::size_t work() const {
    return 2 * rows * dim + rows * key_places + rows * 2 /* offset, weight scale */ +
           rows * 9 /* scales */ + bytes_as_floats(rows * key_places) + rows * 16 +
           rows * (kRunTokens + kScoreMultiple) * 2 + bytes_as_floats(rows * kRunTokens) +
           rows * value_places + bytes_as_floats(kRunTiles * (key_places + value_places) * 16) +
           2 * kRunTokens + 2 * dim + state() + 256;
  }
};

class Runner {
 public:
  Runner(const LayerShape& layer, const BandsStore& keys, const BandsStore& values,
         const Queries& queries, const Cut& cut, const Sizes& sizes, float* work)
      : layer_(layer),
        keys_(keys),
        values_(values),
        queries_(queries),
        cut_(cut),
        key_code_(keys.code()),
        value_code_(values.code()),
        kernels_(attention_kernels(cpu_level())),
        bands_(bands_attention_kernels(cpu_level())) {
    const auto take = [&](std::size_t floats) {
      float* const here = work;
      work += (floats + 3) / 4 * 4;
      return here;
    };
    dim_ = padded_dim(key_code_.key_dim());
    key_places_ = key_code_.places();
    value_places_ = value_code_.places();
    q_ = take(sizes.rows * sizes.dim);
    turned_ = take(sizes.rows * sizes.dim);
    moved_ = take(sizes.rows * sizes.key_places);
    offset_ = take(sizes.rows);
    weight_scale_ = take(sizes.rows);
    scales_ = take(sizes.rows * 9);
    rounded_ =
        reinterpret_cast<std::int8_t*>(take(sizes.bytes_as_floats(sizes.rows * sizes.key_places)));
    sums_ = reinterpret_cast<std::int32_t*>(take(sizes.rows * 16));
    scores_ = take(sizes.rows * (kRunTokens + kScoreMultiple));
    means_ = take(sizes.rows * (kRunTokens + kScoreMultiple));
    weights_ = reinterpret_cast<std::int8_t*>(take(sizes.bytes_as_floats(sizes.rows * kRunTokens)));
    added_ = reinterpret_cast<std::int32_t*>(take(sizes.rows * sizes.value_places));
    key_codes_ = reinterpret_cast<std::int8_t*>(
        take(sizes.bytes_as_floats(kRunTiles * sizes.key_places * 16)));
    value_codes_ = &keys == &values
                       ? key_codes_
                       : reinterpret_cast<std::int8_t*>(
                             take(sizes.bytes_as_floats(kRunTiles * sizes.value_places * 16)));
    key_gains_ = take(kRunTokens);
    value_gains_ = take(kRunTokens);
    cosines_ = take(sizes.dim);
    sines_ = take(sizes.dim);
    state_ = take(sizes.state());
  }

  float* state() const { return state_; }

  // The item's tiles into `state`: max, sum, sum of weights times gains [rows each], then the
  // weighted codes [rows][value_places].
  void run(std::int32_t block, std::int32_t chunk, float* state) {
    first_ = block * cut_.row_positions;
    rows_ = cut_.rows_of(block);
    max_ = state;
    sum_ = state + rows_;
    half_ = state + 2 * rows_;
    out_ = state + 3 * rows_;
    std::fill_n(max_, rows_, -std::numeric_limits<float>::infinity());
    std::fill_n(sum_, 2 * rows_ + static_cast<std::ptrdiff_t>(rows_) * value_places_, 0.0f);
    load_queries();
    const std::int32_t end = std::min(keys_.tiles(), (chunk + 1) * cut_.chunk_tiles);
    std::int32_t tile = chunk * cut_.chunk_tiles;
    std::int32_t anchor = -1;
    while (tile < end) {
      const std::int32_t position = keys_.first_position() + tile * kTile;
      const std::int32_t at = key_code_.anchor_of(position);
      if (at != anchor) move_queries(anchor = at);
      std::int32_t n = std::min(kRunTiles, end - tile);
      if (key_code_.anchor_block() > 0) {
        const std::int32_t left = key_code_.anchor_block() - position % key_code_.anchor_block();
        n = std::min(n, left / kTile);
      }
      run_tiles(tile, n, position);
      tile += n;
    }
  }

 private:
  std::int32_t head_of(std::int32_t row) const {
    return row % cut_.query_heads / (cut_.query_heads / key_code_.heads());
  }
  std::int32_t position_of(std::int32_t row) const {
    return queries_.positions[static_cast<std::size_t>(first_ + row / cut_.query_heads)];
  }

  void load_queries() {
    const float factor = query_factor(layer_);
    std::fill_n(q_, static_cast<std::ptrdiff_t>(rows_) * dim_, 0.0f);
    for (std::int32_t r = 0; r < rows_; ++r) {
      const float* from = queries_.rows.row(first_ + r / cut_.query_heads, r % cut_.query_heads);
      float* to = q_ + static_cast<std::ptrdiff_t>(r) * dim_;
      for (std::int32_t i = 0; i < key_code_.key_dim(); ++i) to[i] = factor * from[i];
    }
  }

  // The queries at an anchor, in coefficient space times the steps, rounded.
  void move_queries(std::int32_t anchor) {
    const bool turns = key_code_.anchor_block() > 0;
    if (turns) {
      rope_turn(key_code_.rope(), -anchor, key_code_.rope().magnitude, cosines_, sines_);
    }
    for (std::int32_t r = 0; r < rows_; ++r) {
      float* t = turned_ + static_cast<std::ptrdiff_t>(r) * dim_;
      std::copy_n(q_ + static_cast<std::ptrdiff_t>(r) * dim_, dim_, t);
      if (turns) apply_turn(key_code_.rope(), cosines_, sines_, t);
    }
    // The query heads of one KV head lie together.
    const std::int32_t per_head = cut_.query_heads / key_code_.heads();
    std::fill_n(moved_, static_cast<std::ptrdiff_t>(rows_) * key_places_, 0.0f);
    for (std::int32_t r = 0; r < rows_; r += per_head) {
      bands_.project(turned_ + static_cast<std::ptrdiff_t>(r) * dim_, dim_, per_head,
                     key_code_.key_rows(head_of(r)), key_code_.key_dim(), key_places_,
                     moved_ + static_cast<std::ptrdiff_t>(r) * key_places_);
    }
    for (std::int32_t r = 0; r < rows_; ++r) {
      float* m = moved_ + static_cast<std::ptrdiff_t>(r) * key_places_;
      float most = 0.0f;
      offset_[r] = 0.5f * bands_.scale(m, key_code_.steps(), key_places_, &most);
      std::int8_t* to = rounded_ + static_cast<std::ptrdiff_t>(r) * key_places_;
      float* scale = scales_ + static_cast<std::ptrdiff_t>(r) * 9;
      for (std::size_t w = 0; w < key_code_.width_runs().size(); ++w) {
        const auto& run = key_code_.width_runs()[w];
        const std::int32_t from = 4 * run.first_quad, n = 4 * run.quads;
        most = bands_.largest(m + from, n);
        scale[w] = most / 127.0f;
        bands_.round(m + from, most > 0.0f ? 127.0f / most : 0.0f, n, to + from);
      }
    }
  }

  void run_tiles(std::int32_t tile, std::int32_t n, std::int32_t position) {
    const std::int32_t tokens = n * kTile, stride = kRunTokens + kScoreMultiple;
    for (std::int32_t i = 0; i < n; ++i) {
      keys_.unpack(tile + i, key_codes_ + static_cast<std::ptrdiff_t>(i) * key_places_ * kTile);
      for (std::int32_t t = 0; t < kTile; ++t) {
        key_gains_[i * kTile + t] = key_code_.gain() ? log_gain(keys_.gains(tile + i)[t]) : 1.0f;
      }
      if (&keys_ == &values_) continue;
      values_.unpack(tile + i,
                     value_codes_ + static_cast<std::ptrdiff_t>(i) * value_places_ * kTile);
      for (std::int32_t t = 0; t < kTile; ++t) {
        value_gains_[i * kTile + t] =
            value_code_.gain() ? gain_of(values_.gains(tile + i)[t]) : 1.0f;
      }
    }
    const float* value_gains = &keys_ == &values_ ? key_gains_ : value_gains_;
    score(n, position);
    for (std::int32_t r = 0; r < rows_; ++r) {
      float* s = scores_ + static_cast<std::ptrdiff_t>(r) * stride;
      const std::int32_t from =
          layer_.window > 0 ? std::clamp(position_of(r) - layer_.window + 1 - position, 0, tokens)
                            : 0;
      std::int8_t* w8 = weights_ + static_cast<std::ptrdiff_t>(r) * tokens;
      if (from == tokens) {
        std::fill_n(w8, tokens, std::int8_t{0});
        weight_scale_[r] = 0.0f;
        continue;
      }
      if (layer_.soft_cap > 0.0f) kernels_.cap(s + from, tokens - from, layer_.soft_cap);
      mask_escapes(tile, n, s);
      const float old = max_[r];
      const float more = kernels_.soften_row(s + from, tokens - from, &max_[r]);
      std::fill_n(s, from, 0.0f);
      if (old != max_[r]) {
        const float decay = std::exp2(old - max_[r]);
        sum_[r] *= decay;
        half_[r] *= decay;
        float* o = out_ + static_cast<std::ptrdiff_t>(r) * value_places_;
        for (std::int32_t i = 0; i < value_places_; ++i) o[i] *= decay;
      }
      sum_[r] += more;
      float most = 0.0f;
      half_[r] += bands_.scale(s, value_gains, tokens, &most);
      weight_scale_[r] = most / 127.0f;
      bands_.round(s, most > 0.0f ? 127.0f / most : 0.0f, tokens, w8);
    }
    bands_.weigh(value_codes_, n, value_places_ / 4, weights_, rows_, added_);
    for (std::int32_t r = 0; r < rows_; ++r) {
      float* o = out_ + static_cast<std::ptrdiff_t>(r) * value_places_;
      const std::int32_t* a = added_ + static_cast<std::ptrdiff_t>(r) * value_places_;
      const float scale = weight_scale_[r];
      for (std::int32_t i = 0; i < value_places_; ++i) o[i] += scale * static_cast<float>(a[i]);
    }
  }

  void mask_escapes(std::int32_t tile, std::int32_t n, float* s) const {
    for (std::int32_t i = 0; i < n; ++i) {
      const std::uint16_t escaped = keys_.escaped(tile + i);
      for (std::int32_t t = 0; escaped >> t != 0; ++t) {
        if ((escaped >> t & 1) != 0) {
          s[i * kTile + t] = -std::numeric_limits<float>::infinity();
        }
      }
    }
  }

  void score(std::int32_t n, std::int32_t position) {
    const std::int32_t tokens = n * kTile, stride = kRunTokens + kScoreMultiple;
    // Means: one head's table for its queries.
    const std::int32_t per_head = cut_.query_heads / key_code_.heads();
    for (std::int32_t r = 0; r < rows_; r += per_head) {
      const RowsView table{
          reinterpret_cast<const std::byte*>(key_code_.turned_mean(head_of(r), position)),
          key_code_.anchor_block() > 0 ? key_code_.mean_stride() : 0, Element::kF32};
      float* to = means_ + static_cast<std::ptrdiff_t>(r) * stride;
      const float* from = turned_ + static_cast<std::ptrdiff_t>(r) * dim_;
      if (key_code_.anchor_block() > 0) {
        kernels_.score_rows(from, per_head, dim_, table, tokens, nullptr, to, stride);
      } else {
        // The same mean for every token.
        kernels_.score_rows(from, per_head, dim_, {table.data, dim_, Element::kF32}, 1, nullptr, to,
                            stride);
        for (std::int32_t p = 0; p < per_head; ++p) {
          std::fill_n(to + static_cast<std::ptrdiff_t>(p) * stride, tokens,
                      to[static_cast<std::ptrdiff_t>(p) * stride]);
        }
      }
    }
    for (std::int32_t i = 0; i < n; ++i) {
      const std::int8_t* codes = key_codes_ + static_cast<std::ptrdiff_t>(i) * key_places_ * kTile;
      for (std::int32_t r = 0; r < rows_; ++r) {
        std::fill_n(scores_ + static_cast<std::ptrdiff_t>(r) * stride + i * kTile, kTile,
                    offset_[r]);
      }
      for (std::size_t w = 0; w < key_code_.width_runs().size(); ++w) {
        const auto& run = key_code_.width_runs()[w];
        bands_.score(codes + static_cast<std::ptrdiff_t>(run.first_quad) * 64, run.quads,
                     rounded_ + 4 * run.first_quad, key_places_, rows_, sums_);
        for (std::int32_t r = 0; r < rows_; ++r) {
          float* s = scores_ + static_cast<std::ptrdiff_t>(r) * stride + i * kTile;
          const float scale =
              scales_[static_cast<std::ptrdiff_t>(r) * 9 + static_cast<std::ptrdiff_t>(w)];
          for (std::int32_t t = 0; t < kTile; ++t) {
            s[t] += scale * static_cast<float>(sums_[r * 16 + t]);
          }
        }
      }
    }
    for (std::int32_t r = 0; r < rows_; ++r) {
      float* s = scores_ + static_cast<std::ptrdiff_t>(r) * stride;
      const float* m = means_ + static_cast<std::ptrdiff_t>(r) * stride;
      for (std::int32_t t = 0; t < tokens; ++t) s[t] = s[t] * key_gains_[t] + m[t];
    }
  }

  const LayerShape& layer_;
  const BandsStore& keys_;
  const BandsStore& values_;
  const Queries& queries_;
  const Cut& cut_;
  const BandsCode& key_code_;
  const BandsCode& value_code_;
  const AttentionKernels& kernels_;
  const BandsAttentionKernels& bands_;
  std::int32_t dim_ = 0, key_places_ = 0, value_places_ = 0, first_ = 0, rows_ = 0;
  float *q_, *turned_, *moved_, *offset_, *weight_scale_, *scales_, *scores_, *means_, *key_gains_,
      *value_gains_, *cosines_, *sines_, *state_;
  float *max_ = nullptr, *sum_ = nullptr, *half_ = nullptr, *out_ = nullptr;
  std::int8_t *rounded_, *weights_, *key_codes_, *value_codes_;
  std::int32_t *sums_, *added_;
};

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

// Merges the chunks of a block of rows in their order and writes the rows.
void write_rows(const BandsCode& code, const Cut& cut, const Sizes& sizes, std::int32_t block,
                const float* states, const Output& out, std::vector<float>& memory) {
  const std::int32_t rows = cut.rows_of(block);
  const auto places = static_cast<std::size_t>(code.places());
  const auto dim = static_cast<std::size_t>(code.value_dim());
  memory.resize(places + dim);
  float* const c = memory.data();
  float* const row = c + places;
  for (std::int32_t r = 0; r < rows; ++r) {
    SoftmaxState whole;
    float half = 0.0f;
    std::fill_n(c, places, 0.0f);
    for (std::int32_t k = 0; k < cut.chunks; ++k) {
      const float* state = states + static_cast<std::size_t>(k) * sizes.state();
      const MergeFactors f = merge_into(whole, {state[r], state[rows + r]});
      const float* o = state + 3 * rows + static_cast<std::size_t>(r) * places;
      half = half * f.kept + state[2 * rows + r] * f.added;
      for (std::size_t i = 0; i < places; ++i) c[i] = c[i] * f.kept + o[i] * f.added;
    }
    const std::int32_t query_head = r % cut.query_heads;
    const std::int32_t head = query_head / (cut.query_heads / code.heads());
    const float inverse = whole.sum > 0.0f ? 1.0f / whole.sum : 0.0f;
    for (std::size_t i = 0; i < places; ++i) {
      c[i] = code.steps()[i] * (c[i] + 0.5f * half) * inverse;
    }
    const float* b = code.value_rows(head);
    const float* mean = code.value_mean(head);
    for (std::size_t j = 0; j < dim; ++j, b += places) {
      row[j] = (whole.sum > 0.0f ? mean[j] : 0.0f) + dot(b, c, places);
    }
    const std::int32_t position = block * cut.row_positions + r / cut.query_heads;
    float* to = out.rows.row(position, query_head);
    float* lse = out.lse.row(position) + query_head;
    if (out.adds) {
      merge_row(row, whole.log_sum_exp(), dim, to, lse);
    } else {
      std::copy_n(row, dim, to);
      *lse = whole.log_sum_exp();
    }
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
  const Cut cut = cut_call(queries, keys.tiles());
  const Sizes sizes{static_cast<std::size_t>(cut.row_positions * cut.query_heads),
                    static_cast<std::size_t>(padded_dim(keys.code().key_dim())),
                    static_cast<std::size_t>(keys.code().places()),
                    static_cast<std::size_t>(values.code().places())};
  if (team.leader()) {
    try {
      scratch.prepare(team.size(), sizes.work(),
                      cut.chunks > 1 ? sizes.state() * static_cast<std::size_t>(cut.items()) : 0);
      scratch.ready = true;
    } catch (const std::bad_alloc&) {
      scratch.ready = false;
    }
  }
  team.barrier();
  if (!scratch.ready) {
    return fail(ErrorCode::kOutOfBudget, "no memory to attend to {} queries", cut.positions);
  }
  Runner runner(layer, keys, values, queries, cut, sizes, scratch.work(team.index()));
  std::vector<float> memory;
  for (int i; (i = team.take()) < cut.items();) {
    const std::int32_t block = i / cut.chunks, chunk = i % cut.chunks;
    float* state = cut.chunks > 1 ? scratch.partials() + static_cast<std::size_t>(i) * sizes.state()
                                  : runner.state();
    runner.run(block, chunk, state);
    if (cut.chunks == 1) {
      write_rows(values.code(), cut, sizes, block, state, output, memory);
    }
  }
  team.barrier();
  if (cut.chunks == 1) return {};
  for (int block; (block = team.take()) < cut.row_blocks;) {
    write_rows(values.code(), cut, sizes, block,
               scratch.partials() + static_cast<std::size_t>(block) *
                                        static_cast<std::size_t>(cut.chunks) * sizes.state(),
               output, memory);
  }
  team.barrier();
  return {};
}

}  // namespace kvspan
