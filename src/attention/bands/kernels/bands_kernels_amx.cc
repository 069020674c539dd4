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

#include "attention/bands/kernels/bands_kernels.h"
#include "attention/bands/kernels/bands_parts_avx512.h"
#include "base/unrolled.h"

namespace kvspan {
namespace {

constexpr std::int32_t kMost = kBandsPartRows;  // rows of a tile, and quads that a product covers
constexpr std::int32_t kTogether = 4;           // tiles of codes that are scored at once
constexpr std::int32_t kBlocks = 2;             // blocks of rows that are summed at once
constexpr std::int32_t kGroups = kBandsStretchTokens / 64;

// Registers 0 to 3 hold sums, then come two with rows of queries or weights, then two with codes:
// loading one does not wait for the product with the other.
constexpr int kRows = 4, kCodes = 6, kCodeTiles = 2;

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

// What a row of queries makes of 16 tokens: sums of ranges, `stride` apart, to numbers.
[[gnu::always_inline]] inline __m512 total_of(const std::int32_t* sums, std::ptrdiff_t stride,
                                              std::size_t ranges, const BandsQueries& queries,
                                              std::ptrdiff_t row) noexcept {
  const float* const scales = queries.scales + row * kBandScales;
  __m512 total = _mm512_set1_ps(queries.offsets[row]);
  for (std::size_t w = 0; w < ranges; ++w, sums += stride) {
    const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums));
    total = _mm512_fmadd_ps(sum, _mm512_set1_ps(scales[w]), total);
  }
  return total;
}

void score(const std::int8_t* codes, std::int32_t tiles, std::span<const BandsCode::ScaleRange> ranges,
           const NarrowQuads& narrow, const BandsQueries& queries, const BandsScores& all) noexcept {
  const std::int32_t block = session.rows, quads = ranges.back().first_quad + ranges.back().quads;
  if (block == 0 || queries.rows < block) {
    return detail::kBandsAttentionAvx512.score(codes, tiles, ranges, narrow, queries, all);
  }
  const std::ptrdiff_t tile_bytes = std::ptrdiff_t{64} * quads;
  alignas(64) std::int32_t sums[kBandScales][kMost][16 * kTogether];
  for (std::int32_t from = 0; from < queries.rows; from += block) {
    // The last block is whole, too, and meets some rows again.
    const std::int32_t first = std::min(from, queries.rows - block);
    for (std::int32_t i = 0; i < tiles; i += kTogether) {
      const std::int32_t n = std::min(kTogether, tiles - i);
      const std::int8_t* asked = queries.rounded + std::ptrdiff_t{first} * queries.stride;
      for (std::size_t w = 0; w < ranges.size(); ++w) {
        dots_of(n, codes + i * tile_bytes + 64 * ranges[w].first_quad, tile_bytes,
                query_bytes(ranges[w]) / 64, asked, queries.stride, sums[w][0]);
        asked += query_bytes(ranges[w]);
      }
      for (std::int32_t r = 0; r < block; ++r) {
        const std::ptrdiff_t row = first + r;
        const float* const mean = all.means + row * all.mean_stride + 16 * i;
        float* const to = all.scores + row * all.score_stride + 16 * i;
        for (std::int32_t k = 0; k < 16 * n; k += 16) {
          const __m512 total = total_of(sums[0][r] + k, sizeof(sums[0]) / sizeof(sums[0][0][0]),
                                        ranges.size(), queries, row);
          _mm512_storeu_ps(to + k, _mm512_fmadd_ps(_mm512_loadu_ps(all.gains + 16 * i + k), total,
                                                   _mm512_loadu_ps(mean + k)));
        }
      }
    }
  }
}

void score_part(const std::int8_t* codes, const std::int8_t* queries, std::int32_t stride,
                bool first, std::int32_t* sums) noexcept {
  if (first) clear<0>();
  load<kRows>(queries, stride);
  load<kCodes>(codes, 64);
  add_product<0, kRows, kCodes>();
  if (sums != nullptr) store<0>(sums, 64);
}

void score_end(const std::int32_t* sums, std::size_t ranges, const BandsQueries& queries,
               const BandsScores& to) noexcept {
  const __m512 gain = _mm512_loadu_ps(to.gains);
  for (std::ptrdiff_t row = 0; row < queries.rows; ++row) {
    const __m512 total = total_of(sums + 16 * row, 16 * kMost, ranges, queries, row);
    const __m512 mean = _mm512_loadu_ps(to.means + row * to.mean_stride);
    _mm512_storeu_ps(to.scores + row * to.score_stride, _mm512_fmadd_ps(gain, total, mean));
  }
}

// Numbers leave for memory while the products of the tiles after them are made. The last block of
// rows is whole, too: what comes of rows that are not there is left.
void project(const std::int8_t* matrix, std::int32_t tiles, std::int32_t quads,
             const float* factors, const std::int8_t* vectors, std::int32_t stride,
             std::int32_t rows, float* to, std::int32_t to_stride) noexcept {
  const std::int32_t block = session.rows;
  if (block == 0 || quads % kMost != 0) {
    return detail::kBandsAttentionAvx512.project(matrix, tiles, quads, factors, vectors, stride,
                                                 rows, to, to_stride);
  }
  alignas(64) std::int32_t sums[2][kMost][16 * kTogether];
  const std::ptrdiff_t tile_bytes = std::ptrdiff_t{64} * quads;
  for (std::int32_t first = 0; first < rows; first += block) {
    const auto multiply = [&](std::int32_t i) {
      dots_of(std::min(kTogether, tiles - i), matrix + i * tile_bytes, tile_bytes, quads / kMost,
              vectors + std::ptrdiff_t{first} * stride, stride, sums[i / kTogether % 2][0]);
    };
    multiply(0);
    for (std::int32_t i = 0; i < tiles; i += kTogether) {
      if (i + kTogether < tiles) multiply(i + kTogether);
      for (std::int32_t r = 0; r < std::min(block, rows - first); ++r) {
        float* const row = to + std::ptrdiff_t{first + r} * to_stride;
        for (std::int32_t k = i; k < std::min(i + kTogether, tiles); ++k) {
          const std::int32_t* const from = sums[i / kTogether % 2][r] + 16 * (k - i);
          const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(from));
          _mm512_storeu_ps(row + 16 * k, _mm512_mul_ps(sum, _mm512_loadu_ps(factors + 16 * k)));
        }
      }
    }
  }
}

// Weighted sums of B blocks of rows, four quads at a time. What was just written is slow to be read
// by tiles and the other way round, so that codes are brought in order for the four after the one
// whose products are made, and sums are added of the one before.
template <int B>
class WeighedBlocks {
 public:
  WeighedBlocks(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads,
                const BandsWeights& weights, std::int32_t block) noexcept
      : codes_(codes),
        tiles_(tiles),
        quads_(quads),
        weights_(weights),
        block_(block),
        groups_((tiles + 3) / 4) {}

  void run() noexcept {
    const std::int32_t fours = (quads_ + 3) / 4;
    for (std::int32_t g = 0; g < groups_; ++g) turn(0, g);
    for (std::int32_t four = 0; four < fours; ++four) {
      unrolled<B>([&]<int b>() __attribute__((always_inline)) { clear<b>(); });
      for (std::int32_t g = 0; g < groups_; ++g) {
        if (four + 1 < fours) turn(four + 1, g);
        load<kCodes>(turned_[four % 2][g], 64);
        unrolled<B>([&]<int b>() __attribute__((always_inline)) {
          load<kRows + b>(weights_.rounded + b * block_ * kBandsStretchTokens + 64 * g,
                          kBandsStretchTokens);
          add_product<b, kRows + b, kCodes>();
        });
      }
      unrolled<B>([&]<int b>() __attribute__((always_inline)) {
        store<b>(sums_[four % 2][b * block_], 64);
      });
      if (four > 0) add(four - 1);
    }
    add(fours - 1);
  }

 private:
  // Quads of a four.
  std::int32_t there(std::int32_t four) const noexcept { return std::min(4, quads_ - 4 * four); }

  // Codes of 64 tokens by tokens. Of those that are not there they may be anything: their weight is
  // none.
  [[gnu::always_inline]] void turn(std::int32_t four, std::int32_t group) noexcept {
    std::int8_t* to = turned_[four % 2][group];
    for (std::int32_t i = 4 * group; i < std::min(4 * group + 4, tiles_); ++i, to += 256) {
      __m512i c[4];
      by_tokens(codes_ + std::ptrdiff_t{64} * (quads_ * i + 4 * four), there(four), c);
      unrolled<4>([&]<int j>()
                      __attribute__((always_inline)) { _mm512_store_si512(to + 64 * j, c[j]); });
    }
  }

  [[gnu::always_inline]] void add(std::int32_t four) noexcept {
    for (std::int32_t r = 0; r < weights_.rows; ++r) {
      add_sums(weights_, r, 16 * four, there(four), _mm512_load_si512(sums_[four % 2][r]));
    }
  }

  const std::int8_t* codes_;
  std::int32_t tiles_, quads_;
  const BandsWeights& weights_;
  std::int32_t block_, groups_;
  alignas(64) std::int8_t turned_[2][kGroups][1024];  // [16 fours of tokens][16][4]
  alignas(64) std::int32_t sums_[2][B * kMost][16];
};

void weigh(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads, const NarrowQuads& narrow,
           const BandsWeights& weights) noexcept {
  const std::int32_t block = session.rows;
  if (block == 0) return detail::kBandsAttentionAvx512.weigh(codes, tiles, quads, narrow, weights);
  for (std::int32_t r = 0; r < weights.rows; r += kBlocks * block) {
    BandsWeights some = weights.from(r);
    some.rows = std::min(some.rows, kBlocks * block);
    if (some.rows <= block) {
      WeighedBlocks<1>(codes, tiles, quads, some, block).run();
    } else {
      WeighedBlocks<2>(codes, tiles, quads, some, block).run();
    }
  }
}

}  // namespace

const BandsAttentionKernels detail::kBandsAttentionAmx{.adds_bytes = true,
                                                       .score = score,
                                                       .weigh = weigh,
                                                       .project = project,
                                                       .score_part = score_part,
                                                       .score_end = score_end,
                                                       .begin = begin,
                                                       .end = end};

}  // namespace kvspan
