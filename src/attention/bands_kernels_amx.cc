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
constexpr std::int32_t kBlocks = 2;    // blocks of rows that are summed at once
constexpr std::int32_t kGroups = kBandTiles / 4;  // of 64 tokens

constexpr std::int32_t kMostQuads = 256;  // of vectors that are padded

// Registers 0 to 3 hold sums, then come rows of queries or weights, then three with codes: loading
// one does not wait for the product with another.
constexpr int kRows = 4, kCodes = 5, kCodeTiles = 3;

struct alignas(64) Shapes {
  std::uint8_t palette = 1, start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(Shapes) == 64);

// Rows that this thread's registers are shaped for, 0 where they are not, and their shapes before.
struct Session {
  Shapes before;
  std::int32_t rows = 0;
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

void begin(std::int32_t rows) noexcept {
  const std::int32_t blocks = (rows + kMost - 1) / kMost;
  session.rows = (rows + blocks - 1) / blocks;
  asm volatile("sttilecfg %0" : "=m"(session.before));
  Shapes shapes;
  for (int i = 0; i < 8; ++i) {
    shapes.rows[i] = static_cast<std::uint8_t>(i < kCodes ? session.rows : kMost);
    shapes.row_bytes[i] = 64;
  }
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

// A block of rows meets T tiles of codes; to[r][16 i + t]. Quads in sixteens, queries being 0 where
// a tile has fewer.
template <int T>
void dots(const std::int8_t* codes, std::ptrdiff_t tile_bytes, std::int32_t sixteens,
          const std::int8_t* queries, std::ptrdiff_t stride, std::int32_t* to) noexcept {
  unrolled<T>([&]<int i>() __attribute__((always_inline)) { clear<i>(); });
  for (; sixteens > 0; --sixteens, queries += 64, codes += 1024) {
    load<kRows>(queries, stride);
    unrolled<T>([&]<int i>() __attribute__((always_inline)) {
      load<kCodes + i % kCodeTiles>(codes + i * tile_bytes, 64);
      add_product<i, kRows, kCodes + i % kCodeTiles>();
    });
  }
  unrolled<T>([&]<int i>() __attribute__((always_inline)) { store<i>(to + 16 * i, 256); });
}

void dots_of(std::int32_t tiles, const std::int8_t* codes, std::ptrdiff_t tile_bytes,
             std::int32_t sixteens, const std::int8_t* queries, std::ptrdiff_t stride,
             std::int32_t* to) noexcept {
  if (tiles == 4) dots<4>(codes, tile_bytes, sixteens, queries, stride, to);
  if (tiles == 3) dots<3>(codes, tile_bytes, sixteens, queries, stride, to);
  if (tiles == 2) dots<2>(codes, tile_bytes, sixteens, queries, stride, to);
  if (tiles == 1) dots<1>(codes, tile_bytes, sixteens, queries, stride, to);
}

void score(const std::int8_t* codes, std::int32_t tiles, std::span<const BandsCode::ScaleRun> runs,
           const BandsQueries& queries, const float* gains, const float* means,
           std::int32_t mean_stride, float* scores, std::int32_t score_stride) noexcept {
  const std::int32_t block = session.rows, quads = runs.back().first_quad + runs.back().quads;
  if (block == 0 || queries.rows < block) {
    return detail::kBandsAttentionAvx512.score(codes, tiles, runs, queries, gains, means,
                                               mean_stride, scores, score_stride);
  }
  const std::ptrdiff_t tile_bytes = std::ptrdiff_t{64} * quads;
  alignas(64) std::int32_t sums[kBandScales][kMost][16 * kTogether];
  for (std::int32_t from = 0; from < queries.rows; from += block) {
    // The last block is whole, too, and meets some rows again.
    const std::int32_t first = std::min(from, queries.rows - block);
    for (std::int32_t i = 0; i < tiles; i += kTogether) {
      const std::int32_t n = std::min(kTogether, tiles - i);
      const std::int8_t* asked = queries.rounded + std::ptrdiff_t{first} * queries.stride;
      for (std::size_t w = 0; w < runs.size(); ++w) {
        dots_of(n, codes + i * tile_bytes + 64 * runs[w].first_quad, tile_bytes,
                query_bytes(runs[w]) / 64, asked, queries.stride, sums[w][0]);
        asked += query_bytes(runs[w]);
      }
      for (std::int32_t r = 0; r < block; ++r) {
        const std::ptrdiff_t row = first + r;
        const float* const scales = queries.scales + row * kBandScales;
        const float* const mean = means + row * mean_stride + 16 * i;
        float* const to = scores + row * score_stride + 16 * i;
        for (std::int32_t k = 0; k < 16 * n; k += 16) {
          __m512 total = _mm512_set1_ps(queries.offsets[row]);
          for (std::size_t w = 0; w < runs.size(); ++w) {
            const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums[w][r] + k));
            total = _mm512_fmadd_ps(sum, _mm512_set1_ps(scales[w]), total);
          }
          _mm512_storeu_ps(to + k, _mm512_fmadd_ps(_mm512_loadu_ps(gains + 16 * i + k), total,
                                                   _mm512_loadu_ps(mean + k)));
        }
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
      dots_of(some, matrix + i * tile_bytes, tile_bytes, quads / kMost, from, from_stride, sums[0]);
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
    const std::int32_t steps = (quads_ + 4 * kFours - 1) / (4 * kFours);
    turn(0);
    for (std::int32_t step = 0; step < steps; ++step) {
      if (step + 1 < steps) turn(step + 1);
      if (blocks_ == 1) sum<1>(step);
      if (blocks_ == 2) sum<2>(step);
      if (step > 0) add(step - 1);
    }
    add(steps - 1);
  }

 private:
  static constexpr int kFours = 2;  // fours of quads in a step

  // Quads of a four.
  std::int32_t there(std::int32_t four) const noexcept { return std::min(4, quads_ - 4 * four); }

  // Codes by tokens. Of tokens that are not there they may be anything: their weight is none.
  void turn(std::int32_t step) noexcept {
    for (std::int32_t k = 0; k < kFours && there(kFours * step + k) > 0; ++k) {
      const std::int32_t four = kFours * step + k;
      const std::int8_t* from = codes_ + std::ptrdiff_t{256} * four;
      std::int8_t* to = turned_[step % 2][k][0];
      for (std::int32_t i = 0; i < tiles_; ++i, from += std::ptrdiff_t{64} * quads_, to += 256) {
        __m512i c[4];
        by_tokens(from, there(four), c);
        unrolled<4>([&]<int j>()
                        __attribute__((always_inline)) { _mm512_store_si512(to + 64 * j, c[j]); });
      }
    }
  }

  // Of a four that is not there, too; nobody reads that.
  template <int B>
  [[gnu::always_inline]] void sum(std::int32_t step) noexcept {
    unrolled<B * kFours>([&]<int k>() __attribute__((always_inline)) { clear<k>(); });
    for (std::int32_t g = 0; g < groups_; ++g) {
      unrolled<kFours>([&]<int k>() __attribute__((always_inline)) {
        load<kCodes + k>(turned_[step % 2][k][g], 64);
      });
      unrolled<B>([&]<int b>() __attribute__((always_inline)) {
        load<kRows>(by_[g][b * block_], 64);
        unrolled<kFours>([&]<int k>() __attribute__((always_inline)) {
          add_product<kFours * b + k, kRows, kCodes + k>();
        });
      });
    }
    unrolled<B * kFours>([&]<int k>() __attribute__((always_inline)) {
      store<k>(sums_[step % 2][k % kFours][k / kFours * block_], 64);
    });
  }

  void add(std::int32_t step) noexcept {
    for (std::int32_t k = 0; k < kFours && there(kFours * step + k) > 0; ++k) {
      const std::int32_t four = kFours * step + k;
      for (std::int32_t r = 0; r < weights_.rows; ++r) {
        add_sums(weights_, r, 16 * four, there(four), _mm512_load_si512(sums_[step % 2][k][r]));
      }
    }
  }

  const std::int8_t* codes_;
  std::int32_t tiles_, quads_;
  const BandsWeights& weights_;
  std::int32_t block_, groups_, blocks_;
  alignas(64) std::int8_t by_[kGroups][kBlocks * kMost][64];  // weights of 64 tokens
  alignas(64) std::int8_t turned_[2][kFours][kGroups][1024];  // [16 fours of tokens][16][4]
  alignas(64) std::int32_t sums_[2][kFours][kBlocks * kMost][16];
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

}  // namespace

const BandsAttentionKernels detail::kBandsAttentionAmx{
    .score = score, .weigh = weigh, .project = project, .begin = begin, .end = end};

}  // namespace kvspan
