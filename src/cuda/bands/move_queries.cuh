// SPDX-License-Identifier: Apache-2.0
// Queries into coefficient space: turned back by the angle of each anchor, times the coefficients'
// basis in f16, and rounded to 8 bits with one scale for a row, in the order that attention reads
// (cuda/bands/score_units.h). A block does so for a tile of heads and a run of anchors, kTiles tiles
// of 16 rows at a time. A warp turns one query to every other anchor, and makes 16 coefficients of every
// kWarps-th slice of all rows.
// What this takes is waiting: for memory, so that what does not depend on queries is asked for before they
// are there, and for instructions, which run once or twice, so that there are few.
#pragma once

#include "cuda/bands/prepare_memory.cuh"
#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/rows.cuh"

namespace kvspan::cuda {

inline constexpr float kUnits = 12582912.0f;  // 1.5 x 2^23: the lowest bits of a sum count units

// The anchors at hand: `count` from `first` on; where the first is in working memory.
struct MoveAnchors {
  int first, count;
  std::int64_t slot;
};

// d + the products of four signed bytes with four unsigned ones.
__device__ __forceinline__ int add_levels(std::uint32_t bytes, std::uint32_t levels, int d) {
  int sum;
  asm("dp4a.s32.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(bytes), "r"(levels), "r"(d));
  return sum;
}

// Numbers of query n of the tile that RoPE turns, by pairs 64 i + 2 lane and the next, with its
// magnitude; zeros where there is no such query or pair. Pairs are an even number (layer_tables.cc).
template <int kPairs>
struct QueryPairs {
  float4 pair[kPairs];  // the first numbers of both pairs, then the second ones
  float most;           // the longest of the query's pairs and other numbers

  __device__ __forceinline__ QueryPairs(const AttendCall& call, const HeadTile& tile, int n, int lane) {
    const int pairs = call.rope_pairs;
    const std::int64_t from = tile.first + min(n, tile.queries - 1) * call.queries.head_stride;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int j = min(64 * i + 2 * lane, pairs - 2);
      const std::int64_t at = from + (call.neighbours ? 2 * j : j);
      const float2 x = read_two(call.queries.data, at, call.queries.type);
      const float2 y = read_two(call.queries.data, at + (call.neighbours ? 2 : pairs), call.queries.type);
      pair[i] = make_float4(x.x, x.y, y.x, y.y);
    }
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const bool used = n < tile.queries && 64 * i + 2 * lane < pairs;
      const float by = used ? call.rope_magnitude : 0.0f;
      float4 x = pair[i];
      if (call.neighbours) x = make_float4(x.x, x.z, x.y, x.w);
      x = make_float4(by * x.x, by * x.y, by * x.z, by * x.w);
      square = fmaxf(square, fmaxf(x.x * x.x + x.z * x.z, x.y * x.y + x.w * x.w));
      pair[i] = x;
    }
#pragma unroll 1
    for (int i = 2 * pairs + lane; i < call.key_dim; i += 32) {
      const float x = read_number(call.queries.data, from + i, call.queries.type);
      square = fmaxf(square, x * x);
    }
    // Numbers that are not negative are in the order of their bits.
    most = sqrtf(__uint_as_float(__reduce_max_sync(~0u, __float_as_uint(square))));
  }
};

// Which rows a warp turns: its query at anchors first, first + kStep, ..
template <int kWarps, int kTiles>
struct TurnShare {
  static_assert(kWarps % kTileQueries == 0);
  static constexpr int kStep = kWarps / kTileQueries, kOwn = 4 * kTiles / kStep;
  int query, first;
  __device__ __forceinline__ explicit TurnShare(int warp)
      : query(warp % kTileQueries), first(warp / kTileQueries) {}
};

// Turns of the anchors that a warp turns its query to; two pairs by each lane.
template <int kPairs, int kWarps, int kTiles>
struct AnchorTurns {
  using Share = TurnShare<kWarps, kTiles>;
  float4 turn[Share::kOwn][kPairs];

  // Of anchors beyond the last: those of the last.
  __device__ __forceinline__ void load(const AttendCall& call, const Share& share, int first, int count) {
    const int lane = threadIdx.x & 31, pairs = call.rope_pairs;
#pragma unroll
    for (int k = 0; k < Share::kOwn; ++k) {
      const int anchor = first + min(share.first + k * Share::kStep, count - 1);
      const int position = anchor * call.anchor + call.anchor / 2;
      const auto* const turns =
          reinterpret_cast<const float4*>(call.turns + position / kTurnStep * pairs);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        turn[k][i] = __ldg(turns + min(32 * i + lane, pairs / 2 - 1));
      }
    }
  }
};

// Rows of the tile, turned, over the longest: row 4 a + n is query n at anchor a. Rows beyond the last
// anchor repeat it.
template <int kPairs, int kWarps, int kTiles>
__device__ __forceinline__ void turn_rows(const AttendCall& call, const HeadTile& tile,
                                          const TurnShare<kWarps, kTiles>& share,
                                          const QueryPairs<kPairs>& query,
                                          const AnchorTurns<kPairs, kWarps, kTiles>& turns,
                                          const MoveMemory& memory, char* shared) {
  using Share = TurnShare<kWarps, kTiles>;
  const int lane = threadIdx.x & 31, pairs = call.rope_pairs;
  const float inverse = query.most > 0.0f ? __fdividef(1.0f, query.most) : 0.0f;
  const bool near = call.neighbours;
  __half* const rows = reinterpret_cast<__half*>(shared + memory.rows) +
                       (share.first * kTileQueries + share.query) * memory.row_stride;
  const int next = Share::kStep * kTileQueries * memory.row_stride;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int j = 64 * i + 2 * lane;
    if (j >= pairs) break;
    float4 x = query.pair[i];
    x = make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse);
    __half* const to = rows + (near ? 2 * j : j);
    const int second = near ? 2 : pairs;
#pragma unroll
    for (int k = 0; k < Share::kOwn; ++k) {
      const float4 by = turns.turn[k][i];
      const float2 p = make_float2(x.x * by.x + x.z * by.y, x.y * by.z + x.w * by.w);
      const float2 q = make_float2(x.z * by.x - x.x * by.y, x.w * by.z - x.y * by.w);
      *reinterpret_cast<__half2*>(to + k * next) = __floats2half2_rn(p.x, near ? q.x : p.y);
      *reinterpret_cast<__half2*>(to + k * next + second) = __floats2half2_rn(near ? p.y : q.x, q.y);
    }
  }
  const std::int64_t from =
      tile.first + min(share.query, tile.queries - 1) * call.queries.head_stride;
#pragma unroll 1
  for (int i = 2 * pairs + lane; i < 16 * key_steps_of(call.key_dim); i += 32) {
    float x = 0.0f;
    if (i < call.key_dim && share.query < tile.queries) {
      x = read_number(call.queries.data, from + i, call.queries.type) * inverse;
    }
#pragma unroll
    for (int k = 0; k < Share::kOwn; ++k) rows[i + k * next] = __float2half_rn(x);
  }
}

// The basis of 16 coefficients, a step of 16 numbers of a key each; of the lane.
template <int kSteps>
__device__ __forceinline__ void load_slice(const uint4* basis, int slice, uint4 (&b)[kSteps]) {
#pragma unroll
  for (int s = 0; s < kSteps; ++s) b[s] = __ldg(basis + (slice * kSteps + s) * 32);
}

// Products of the rows with all slices of this warp, to shared memory in f16; the largest of a row.
// b: the warp's first slice, also afterwards: for the rows that come next.
template <int kSteps, int kWarps, int kTiles>
__device__ __forceinline__ void multiply_rows(const AttendCall& call, const uint4* basis,
                                              uint4 (&b)[kSteps], const MoveMemory& memory,
                                              char* shared) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
  const int slices = 4 * call.units;
  // ldmatrix: rows 0..7 and 8..15, then both again for the upper eight numbers.
  const std::uint32_t rows = shared_address(shared + memory.rows) +
                             static_cast<unsigned>((lane % 16 * memory.row_stride + lane / 16 * 8) * 2);
  float most[kTiles][2] = {};
#pragma unroll 1
  for (int slice = warp; slice < slices; slice += kWarps) {
    const uint4* const next = basis + (slice + kWarps < slices ? slice + kWarps : warp) * kSteps * 32;
    float acc[kTiles][2][4] = {};
    std::uint32_t a[2][kTiles][4];  // of this step and of the next, which is asked for before it is needed
    const auto load_rows = [&](int s, std::uint32_t (&to)[kTiles][4]) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        load_matrices(rows + static_cast<unsigned>((16 * t * memory.row_stride + 16 * s) * 2), to[t]);
      }
    };
    load_rows(0, a[0]);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (s + 1 < kSteps) load_rows(s + 1, a[(s + 1) % 2]);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const std::uint32_t(&x)[4] = a[s % 2][t];
        mma_f16(acc[t][0], make_uint4(x[0], x[1], x[2], x[3]), make_uint2(b[s].x, b[s].y));
        mma_f16(acc[t][1], make_uint4(x[0], x[1], x[2], x[3]), make_uint2(b[s].z, b[s].w));
      }
      b[s] = __ldg(next + s * 32);
    }
    auto* const products = reinterpret_cast<__half*>(shared + memory.products) + 16 * slice + 2 * c;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 x = make_float2(acc[t][0][2 * r], acc[t][0][2 * r + 1]);
        const float2 y = make_float2(acc[t][1][2 * r], acc[t][1][2 * r + 1]);
        most[t][r] = fmaxf(most[t][r], fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)),
                                             fmaxf(fabsf(y.x), fabsf(y.y))));
        __half* const to = products + (16 * t + 8 * r + g) * memory.product_stride;
        *reinterpret_cast<__half2*>(to) = __floats2half2_rn(x.x, x.y);
        *reinterpret_cast<__half2*>(to + 8) = __floats2half2_rn(y.x, y.y);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[t][r] = fmaxf(most[t][r], __shfl_xor_sync(~0u, most[t][r], 1));
      most[t][r] = fmaxf(most[t][r], __shfl_xor_sync(~0u, most[t][r], 2));
      // Numbers that are not negative are in the order of their bits.
      if (c == 0) {
        atomicMax(reinterpret_cast<int*>(shared + memory.most) + 16 * t + 8 * r + g,
                  __float_as_int(most[t][r]));
      }
    }
  }
}

// Products rounded and written, 16 by each thread at a time; sums of what bytes with all bits set
// would add.
template <int kWarps, int kTiles>
__device__ __forceinline__ void round_rows(const AttendCall& call, const HeadTile& tile,
                                           const MoveAnchors& anchors, const MoveMemory& memory,
                                           char* shared) {
  const int units = call.units;
  const auto* const most = reinterpret_cast<const float*>(shared + memory.most);
  auto* const levels = reinterpret_cast<int*>(shared + memory.levels);
  const int segments = 4 * units;
  // A thread's query stays; segments of 16 coefficients follow each other, then anchors.
  const int n = threadIdx.x / 4 % kTileQueries;
  int a = 0, segment = static_cast<int>(threadIdx.x / 16 * 4 + threadIdx.x % 4);
  if (n >= tile.queries) return;
#pragma unroll 1
  while (true) {
    while (segment >= segments) segment -= segments, ++a;
    if (a >= anchors.count) break;
    const int row = a * kTileQueries + n;
    const auto* const from = reinterpret_cast<const uint4*>(
        reinterpret_cast<const __half*>(shared + memory.products) + row * memory.product_stride +
        16 * segment);
    const uint4 raw[2] = {from[0], from[1]};
    const float inverse = most[row] > 0.0f ? __fdividef(127.0f, most[row]) : 0.0f;
    const uint4 full = reinterpret_cast<const uint4*>(shared + memory.full)[segment];
    const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(shared + memory.words)[segment / 4];
    std::uint32_t bytes[4];
    const auto round_by = [&](const auto& whole) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const auto* const halves = reinterpret_cast<const __half2*>(&raw[w / 2]) + w % 2 * 2;
        const float2 x = __half22float2(halves[0]), y = __half22float2(halves[1]);
        bytes[w] = __byte_perm(__byte_perm(whole(x.x), whole(x.y), 0x0040),
                               __byte_perm(whole(y.x), whole(y.y), 0x0040), 0x5410);
      }
    };
    if ((word & kRefines) == 0) {
      round_by([&](float number) { return __float_as_uint(fmaf(number, inverse, kUnits)); });
    } else {
      round_by([&](float number) {
        const float scaled = number * inverse, left = scaled - rintf(scaled);
        return __float_as_uint(fmaf(left, 1 << kRefinedBits, kUnits));
      });
    }
    int sum = add_levels(bytes[0], full.x, 0);
    sum = add_levels(bytes[1], full.y, sum);
    sum = add_levels(bytes[2], full.z, sum);
    sum = add_levels(bytes[3], full.w, sum);
    atomicAdd(levels + row, sum << (word >> 24 & 15u));
    std::byte* const to = call.moved + (anchors.slot + a) * call.moved_bytes() +
                          (segment / 4 * call.padded_queries + tile.group_query + n) * 64 +
                          segment % 4 * 16;
    *reinterpret_cast<uint4*>(to) = make_uint4(bytes[0], bytes[1], bytes[2], bytes[3]);
    segment += 8 * kWarps;  // 16 threads have four segments
  }
}

// All of a block's work. after_tables is called when what does not depend on the queries has been asked for:
// from then on they can be read.
template <int kSegments, int kWarps, int kTiles, class AfterTables>
__device__ __forceinline__ void move_queries(const AttendCall& call, const HeadTile& tile,
                                             const MoveAnchors& all, char* shared,
                                             const AfterTables& after_tables) {
  constexpr int kPairs = (kSegments + 3) / 4, kAnchors = 4 * kTiles, kSteps = 2 * kSegments;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const MoveMemory memory(kSteps, call.units, kTiles);
  const TurnShare<kWarps, kTiles> share(warp);
  const auto* const basis =
      reinterpret_cast<const uint4*>(call.key_basis) +
      static_cast<std::int64_t>(tile.head) * call.units * 4 * kSteps * 32 + lane;
  if (threadIdx.x == 0) {
    ask_early(basis, static_cast<std::int64_t>(call.units) * 4 * kSteps * 32 * sizeof(uint4));
  }
  AnchorTurns<kPairs, kWarps, kTiles> turns;
  turns.load(call, share, all.first, min(kAnchors, all.count));
  uint4 b[kSteps];
  load_slice(basis, min(warp, 4 * call.units - 1), b);
  const float scales = __ldg(call.score_scales + tile.group) * __ldg(call.key_scales + tile.head) *
                       call.logit_scale * 1.44269504f * exp2_approx(-kWeightBits - kFractionBits);
#pragma unroll 1
  for (int i = threadIdx.x; i < 4 * call.units; i += 32 * kWarps) {
    reinterpret_cast<uint4*>(shared + memory.full)[i] =
        __ldg(call.unit_levels + tile.group * kMaxUnits * 4 + i);
  }
  if (static_cast<int>(threadIdx.x) < call.units) {
    reinterpret_cast<std::uint32_t*>(shared + memory.words)[threadIdx.x] =
        __ldg(call.unit_table + tile.group * kMaxUnits + threadIdx.x);
  }
  prefetch_numbers(call.queries.data, tile.first + lane, call.queries.type);
  after_tables();
  const QueryPairs<kPairs> query(call, tile, share.query, lane);
  if (lane == 0 && share.first == 0) {
    reinterpret_cast<float*>(shared + memory.longest)[share.query] = query.most;
  }
#pragma unroll 1
  for (int done = 0; done < all.count; done += kAnchors) {
    const MoveAnchors anchors{all.first + done, min(kAnchors, all.count - done), all.slot + done};
    turn_rows<kPairs, kWarps, kTiles>(call, tile, share, query, turns, memory, shared);
    if (done + kAnchors < all.count) {
      turns.load(call, share, anchors.first + kAnchors, min(kAnchors, all.count - done - kAnchors));
    }
    if (threadIdx.x < 16 * kTiles) {
      reinterpret_cast<int*>(shared + memory.most)[threadIdx.x] = 0;
      reinterpret_cast<int*>(shared + memory.levels)[threadIdx.x] = 0;
    }
    __syncthreads();
    multiply_rows<kSteps, kWarps, kTiles>(call, basis, b, memory, shared);
    __syncthreads();
    round_rows<kWarps, kTiles>(call, tile, anchors, memory, shared);
    __syncthreads();
    const auto scales_of = [&](int a) {
      return reinterpret_cast<float2*>(call.moved + (anchors.slot + a) * call.moved_bytes() +
                                       call.moved_coefficients()) +
             tile.group_query;
    };
    const int row = threadIdx.x, a = row / kTileQueries, n = row % kTileQueries;
    if (row < 16 * kTiles && a < anchors.count && n < tile.queries) {
      const float most = reinterpret_cast<const float*>(shared + memory.most)[row];
      const float longest = reinterpret_cast<const float*>(shared + memory.longest)[n];
      // Half of what all bits would add: bytes stand for as much above as below it.
      const int off = -(reinterpret_cast<const int*>(shared + memory.levels)[row] / 2);
      scales_of(a)[n] = make_float2(most / 127.0f * longest * scales, __int_as_float(off));
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < anchors.count * tile.padding; i += 32 * kWarps) {
      scales_of(i / tile.padding)[tile.queries + i % tile.padding] = make_float2(0.0f, 0.0f);
    }
    __syncthreads();
  }
}

}  // namespace kvspan::cuda
