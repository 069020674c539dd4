// SPDX-License-Identifier: Apache-2.0
// Products of bands by tiles of AMX: sums of up to 16 rows and 16 columns over 64 bytes an
// instruction, about eight times what VPDPBUSD does. A quad of a tile of codes is a row of the
// second factor as it lies in memory; for weighted sums codes are brought in order first. The rest
// is AVX-512's.
//
// Instructions are written out: GCC 12's intrinsics do not tell of the memory that they read and
// write, so that stores to it can be dropped or come too late.
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "attention/bands_kernels.h"
#include "attention/bands_parts_avx512.h"
#include "base/unrolled.h"

namespace kvspan {
namespace {

constexpr std::int32_t kMost = 16;     // rows of a tile, and quads that one product covers
constexpr std::int32_t kTogether = 4;  // tiles of codes that are scored at once
constexpr std::int32_t kBlocks = 3;    // blocks of rows that are summed at once
constexpr std::int32_t kGroups = kBandTiles / 4;  // of 64 tokens

constexpr std::int32_t kMostQuads = 256;  // of queries

// Registers 0 to 3 hold sums; factors whole or, of the quads that are left over, in part.
constexpr int kQueries = 4, kCodes = 5, kQueriesLeft = 6, kCodesLeft = 7;

struct alignas(64) Shapes {
  std::uint8_t palette = 1, start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(Shapes) == 64);

// What this thread's registers are shaped for, rows 0 where they are not, and what they were.
struct Session {
  Shapes before;
  std::int32_t rows = 0, quads = 0;
};
thread_local Session session;

inline void load_shapes(const Shapes& shapes) noexcept {
  asm volatile("ldtilecfg %0" : : "m"(shapes));
}

template <int kTile>
[[gnu::always_inline]] inline void load(const void* from, std::ptrdiff_t stride) noexcept {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "n"(kTile) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void store(void* to, std::ptrdiff_t stride) noexcept {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "n"(kTile) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void clear() noexcept {
  asm volatile("tilezero %%tmm%c0" : : "n"(kTile));
}
// sums += a b, of bytes with signs.
template <int kSums, int kA, int kB>
[[gnu::always_inline]] inline void add_product() noexcept {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(kSums), "n"(kA), "n"(kB));
}

void begin(std::int32_t rows, std::int32_t quads) noexcept {
  const std::int32_t blocks = (rows + kMost - 1) / kMost, left = quads % kMost;
  session.rows = (rows + blocks - 1) / blocks;
  session.quads = quads;
  asm volatile("sttilecfg %0" : "=m"(session.before));
  Shapes shapes;
  for (int i = 0; i < 8; ++i) {
    shapes.rows[i] = static_cast<std::uint8_t>(session.rows);
    shapes.row_bytes[i] = 64;
  }
  shapes.rows[kCodes] = kMost;
  shapes.row_bytes[kQueriesLeft] = static_cast<std::uint16_t>(4 * std::max(left, 1));
  shapes.rows[kCodesLeft] = static_cast<std::uint8_t>(std::max(left, 1));
  load_shapes(shapes);
}

void end() noexcept {
  session.rows = 0;
  if (session.before.palette == 0) {
    asm volatile("tilerelease");
  } else {
    load_shapes(session.before);
  }
}

// A block of rows meets T tiles of codes; to[r][16 i + t].
template <int T>
void dots(const std::int8_t* codes, std::ptrdiff_t tile_bytes, std::int32_t quads,
          const std::int8_t* queries, std::ptrdiff_t stride, std::int32_t* to) noexcept {
  unrolled<T>([&]<int i>() __attribute__((always_inline)) { clear<i>(); });
  std::int32_t q = 0;
  for (; q + kMost <= quads; q += kMost, queries += 64, codes += 1024) {
    load<kQueries>(queries, stride);
    unrolled<T>([&]<int i>() __attribute__((always_inline)) {
      load<kCodes>(codes + i * tile_bytes, 64);
      add_product<i, kQueries, kCodes>();
    });
  }
  if (q < quads) {
    load<kQueriesLeft>(queries, stride);
    unrolled<T>([&]<int i>() __attribute__((always_inline)) {
      load<kCodesLeft>(codes + i * tile_bytes, 64);
      add_product<i, kQueriesLeft, kCodesLeft>();
    });
  }
  unrolled<T>([&]<int i>() __attribute__((always_inline)) { store<i>(to + 16 * i, 256); });
}

void dots_of(std::int32_t tiles, const std::int8_t* codes, std::ptrdiff_t tile_bytes,
             std::int32_t quads, const std::int8_t* queries, std::ptrdiff_t stride,
             std::int32_t* to) noexcept {
  if (tiles == 4) dots<4>(codes, tile_bytes, quads, queries, stride, to);
  if (tiles == 3) dots<3>(codes, tile_bytes, quads, queries, stride, to);
  if (tiles == 2) dots<2>(codes, tile_bytes, quads, queries, stride, to);
  if (tiles == 1) dots<1>(codes, tile_bytes, quads, queries, stride, to);
}

// Of a block of rows, the queries of one run of quads with zeros before and after it, up to whole
// sixteens of the tile's quads.
struct RunQueries {
  std::int32_t first = 0, end = 0;  // quads
  alignas(64) std::int8_t rows[kMost][4 * kMostQuads];

  void set(const BandsCode::ScaleRun& run, std::int32_t quads, const std::int8_t* queries,
           std::ptrdiff_t stride, std::int32_t count) noexcept {
    first = run.first_quad / kMost * kMost;
    end = std::min(quads, (run.first_quad + run.quads + kMost - 1) / kMost * kMost);
    for (std::int32_t r = 0; r < count; ++r, queries += stride) {
      std::memset(rows[r], 0, static_cast<std::size_t>(4 * (end - first)));
      std::memcpy(rows[r] + 4 * (run.first_quad - first), queries + 4 * run.first_quad,
                  static_cast<std::size_t>(4 * run.quads));
    }
  }
};

// What sums of n tiles make of the scores of a block: with `scale` of each row, added to the offset
// or to what there is.
struct RunScores {
  const BandsQueries& queries;
  const float *gains, *means;
  std::ptrdiff_t mean_stride;
  float* scores;
  std::ptrdiff_t score_stride;

  void add(const std::int32_t* sums, std::int32_t first, std::int32_t rows, std::int32_t n,
           std::size_t run) const noexcept {
    for (std::ptrdiff_t r = first; r < first + rows; ++r, sums += 16 * kTogether) {
      const __m512 scale = _mm512_set1_ps(queries.scales[r * kBandScales + std::ptrdiff_t(run)]);
      const __m512 offset = _mm512_set1_ps(queries.offsets[r]);
      const float* const mean = means + r * mean_stride;
      float* const to = scores + r * score_stride;
      for (std::int32_t k = 0; k < 16 * n; k += 16) {
        const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + k));
        const __m512 gain = _mm512_loadu_ps(gains + k);
        _mm512_storeu_ps(
            to + k,
            run == 0 ? _mm512_fmadd_ps(gain, _mm512_fmadd_ps(sum, scale, offset),
                                       _mm512_loadu_ps(mean + k))
                     : _mm512_fmadd_ps(gain, _mm512_mul_ps(sum, scale), _mm512_loadu_ps(to + k)));
      }
    }
  }
};

void score(const std::int8_t* codes, std::int32_t tiles, std::span<const BandsCode::ScaleRun> runs,
           const BandsQueries& queries, const float* gains, const float* means,
           std::int32_t mean_stride, float* scores, std::int32_t score_stride) noexcept {
  const std::int32_t block = session.rows, quads = runs.back().first_quad + runs.back().quads;
  if (block == 0 || quads != session.quads || quads > kMostQuads || queries.rows < block) {
    return detail::kBandsAttentionAvx512.score(codes, tiles, runs, queries, gains, means,
                                               mean_stride, scores, score_stride);
  }
  const std::ptrdiff_t tile_bytes = std::ptrdiff_t{64} * quads;
  alignas(64) std::int32_t sums[kMost][16 * kTogether];
  RunQueries asked;
  for (std::int32_t from = 0; from < queries.rows; from += block) {
    // The last block is whole, too, and meets some rows again.
    const std::int32_t first = std::min(from, queries.rows - block);
    for (std::size_t w = 0; w < runs.size(); ++w) {
      asked.set(runs[w], quads, queries.rounded + std::ptrdiff_t{first} * queries.stride,
                queries.stride, block);
      for (std::int32_t i = 0; i < tiles; i += kTogether) {
        const std::int32_t n = std::min(kTogether, tiles - i);
        dots_of(n, codes + i * tile_bytes + 64 * asked.first, tile_bytes, asked.end - asked.first,
                asked.rows[0], sizeof(asked.rows[0]), sums[0]);
        RunScores{queries,     gains + 16 * i,  means + 16 * i,
                  mean_stride, scores + 16 * i, score_stride}
            .add(sums[0], first, block, n, w);
      }
    }
  }
}

// Rows of vectors, fewer than a block among them, as blocks of rows with zeros after them.
void project(const std::int8_t* matrix, std::int32_t tiles, std::int32_t quads,
             const float* factors, const std::int8_t* vectors, std::int32_t stride,
             std::int32_t rows, float* to, std::int32_t to_stride) noexcept {
  const std::int32_t block = session.rows;
  if (block == 0 || quads % kMost != 0 || quads > kMostQuads) {
    return detail::kBandsAttentionAvx512.project(matrix, tiles, quads, factors, vectors, stride,
                                                 rows, to, to_stride);
  }
  alignas(64) std::int8_t padded[kMost][4 * kMostQuads];
  alignas(64) std::int32_t sums[kMost][16 * kTogether];
  const std::ptrdiff_t tile_bytes = std::ptrdiff_t{64} * quads;
  for (std::int32_t first = 0; first < rows; first += block) {
    const std::int32_t n = std::min(block, rows - first);
    const std::int8_t* from = vectors + std::ptrdiff_t{first} * stride;
    std::ptrdiff_t from_stride = stride;
    if (n < block) {
      from_stride = sizeof(padded[0]);
      std::memset(padded, 0, sizeof(padded[0]) * static_cast<std::size_t>(block));
      for (std::int32_t r = 0; r < n; ++r) {
        std::memcpy(padded[r], from + std::ptrdiff_t{r} * stride,
                    static_cast<std::size_t>(4 * quads));
      }
      from = padded[0];
    }
    for (std::int32_t i = 0; i < tiles; i += kTogether) {
      const std::int32_t some = std::min(kTogether, tiles - i);
      dots_of(some, matrix + i * tile_bytes, tile_bytes, quads, from, from_stride, sums[0]);
      for (std::int32_t r = 0; r < n; ++r) {
        float* const row = to + std::ptrdiff_t{first + r} * to_stride + 16 * i;
        for (std::int32_t k = 0; k < some; ++k) {
          const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums[r] + 16 * k));
          _mm512_storeu_ps(row + 16 * k,
                           _mm512_mul_ps(sum, _mm512_loadu_ps(factors + 16 * (i + k))));
        }
      }
    }
  }
}

// Weighted sums of at most kBlocks blocks of rows. What was just written is slow to be read by
// tiles and the other way round, so that each step works on what the one before it has written.
class WeighedBlocks {
 public:
  WeighedBlocks(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads,
                const BandsWeights& weights, std::int32_t block) noexcept
      : codes_(codes),
        tiles_(tiles),
        quads_(quads),
        weights_(weights),
        block_(block),
        groups_((tiles + 3) / 4),
        blocks_((weights.rows + block - 1) / block) {
    for (std::int32_t g = 0; g < groups_; ++g) {
      std::memset(by_[g], 0, sizeof(by_[g][0]) * static_cast<std::size_t>(blocks_ * block));
      for (std::int32_t i = 4 * g; i < std::min(4 * g + 4, tiles); ++i) {
        const std::int8_t* from = weights.rounded + std::ptrdiff_t{16} * i * weights.stride;
        for (std::int32_t r = 0; r < weights.rows; ++r) {
          std::memcpy(by_[g][r] + 16 * (i % 4), from + 16 * r, 16);
        }
      }
    }
  }

  void run() noexcept {
    const std::int32_t fours = (quads_ + 3) / 4;
    turn(0);
    for (std::int32_t f = 0; f < fours; ++f) {
      if (f + 1 < fours) turn(f + 1);
      if (blocks_ == 1) sum<1>(f);
      if (blocks_ == 2) sum<2>(f);
      if (blocks_ == 3) sum<3>(f);
      if (f > 0) add(f - 1);
    }
    add(fours - 1);
  }

 private:
  std::int32_t there(std::int32_t four) const noexcept { return std::min(4, quads_ - 4 * four); }

  // Codes of four quads by tokens. Of tokens that are not there they may be anything: their weight
  // is none.
  void turn(std::int32_t four) noexcept {
    const std::int8_t* from = codes_ + std::ptrdiff_t{256} * four;
    std::int8_t* to = turned_[four % 2][0];
    for (std::int32_t i = 0; i < tiles_; ++i, from += std::ptrdiff_t{64} * quads_, to += 256) {
      __m512i c[4];
      by_tokens(from, there(four), c);
      unrolled<4>([&]<int k>()
                      __attribute__((always_inline)) { _mm512_store_si512(to + 64 * k, c[k]); });
    }
  }

  template <int B>
  [[gnu::always_inline]] void sum(std::int32_t four) noexcept {
    unrolled<B>([&]<int b>() __attribute__((always_inline)) { clear<b>(); });
    for (std::int32_t g = 0; g < groups_; ++g) {
      load<kCodes>(turned_[four % 2][g], 64);
      unrolled<B>([&]<int b>() __attribute__((always_inline)) {
        load<kQueries>(by_[g][b * block_], 64);
        add_product<b, kQueries, kCodes>();
      });
    }
    unrolled<B>([&]<int b>()
                    __attribute__((always_inline)) { store<b>(sums_[four % 2][b * block_], 64); });
  }

  void add(std::int32_t four) noexcept {
    for (std::int32_t r = 0; r < weights_.rows; ++r) {
      add_sums(weights_, r, 16 * four, there(four), _mm512_load_si512(sums_[four % 2][r]));
    }
  }

  const std::int8_t* codes_;
  std::int32_t tiles_, quads_;
  const BandsWeights& weights_;
  std::int32_t block_, groups_, blocks_;
  alignas(64) std::int8_t by_[kGroups][kBlocks * kMost][64];  // weights of 64 tokens
  alignas(64) std::int8_t turned_[2][kGroups][1024];          // [16 fours of tokens][16][4]
  alignas(64) std::int32_t sums_[2][kBlocks * kMost][16];
};

void weigh(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads,
           const BandsWeights& weights) noexcept {
  const std::int32_t block = session.rows;
  if (block == 0) return detail::kBandsAttentionAvx512.weigh(codes, tiles, quads, weights);
  for (std::int32_t r = 0; r < weights.rows; r += kBlocks * block) {
    BandsWeights some = weights.from(r);
    some.rows = std::min(some.rows, kBlocks * block);
    WeighedBlocks(codes, tiles, quads, some, block).run();
  }
}

BandsAttentionKernels kernels() noexcept {
  BandsAttentionKernels all = detail::kBandsAttentionAvx512;
  all.score = score;
  all.weigh = weigh;
  all.project = project;
  all.begin = begin;
  all.end = end;
  return all;
}

}  // namespace

// The other table is there before anything is run.
const BandsAttentionKernels detail::kBandsAttentionAmx = kernels();

}  // namespace kvspan
