// SPDX-License-Identifier: Apache-2.0
// Full-rank rows become codes of bands: 16 or 8 tokens of one group at a time, as BandsCode::encode
// does it on the host, by two kernels. The first gathers z (keys turned to their anchor, means
// taken off) and makes 64 components of c = A z in f32, so that few tokens keep as many blocks busy
// as there are components. The second finds the gain; codes are rounded down and their digits
// packed into the tile's half.
#include <algorithm>

#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/overlapping_launch.h"
#include "cuda/kernels/rows.cuh"
#include "cuda/kernels/step.h"

namespace kvspan::cuda {
namespace {

constexpr int kThreads = 256;

// Tokens that a block packs.
constexpr int kPacked = 4;
// Components of a block, and threads that share the sum of each.
constexpr int kComponents = 64, kSharers = kThreads / kComponents;

// Of a block that analyses so many tokens.
struct AnalysisMemory {
  int z, sums, bytes;
  __host__ __device__ AnalysisMemory(int width, int tokens) {
    z = 0;
    sums = z + width * tokens * 4;
    bytes = sums + kThreads * tokens * 4;
  }
};
// Of one that packs them.
struct Memory {
  int c, tile, gains, bytes;
  __host__ __device__ Memory(int components, int tile_bytes, int tokens) {
    c = 0;
    tile = c + components * tokens * 4;
    gains = tile + tile_bytes;
    bytes = gains + tokens * 8;
  }
};

// Tokens of a block: of which item, and where. Blocks of a launch begin with the call's half
// `first_half`.
template <int kTokens>
struct BlockTokens {
  const EncodeItem* item;
  int position;
  __device__ __forceinline__ BlockTokens(const EncodeCall& call, int first_half) {
    const int block = static_cast<int>(blockIdx.x) + first_half * (16 / kTokens);
    int index = 0;
    while (index + 1 < call.item_count &&
           call.items[index + 1].halves_before * (16 / kTokens) <= block)
      ++index;
    item = &call.items[index];
    position = item->first_position + (block - item->halves_before * (16 / kTokens)) * kTokens;
  }
};

// z [D][kTokens]: x_k = Rot(-t_a) k / m - Rot(t - t_a) mu, x_v = v - m.
template <int kTokens>
__device__ void gather(const EncodeCall& call, const EncodeItem& item, int group, int position,
                       float* z) {
  const int heads = call.group_heads, keys = heads * call.key_dim;
  const float* const means = call.group_table[group].means;
  const int pairs = call.rope_pairs;
  for (int t = threadIdx.x / 16; t < kTokens; t += kThreads / 16) {
    const int p = position + t, slot = p % kRowPageTokens;
    const std::int32_t page = item.row_pages[p / kRowPageTokens];
    const int anchor = p / call.anchor * call.anchor + call.anchor / 2;
    const float2* const turns = call.turns + static_cast<std::int64_t>(anchor / kTurnStep) * pairs;
    const float2* const offsets =
        call.offset_turns + static_cast<std::int64_t>(p % call.anchor) * pairs;
    for (int h = 0; h < heads; ++h) {
      const __half* const rows =
          reinterpret_cast<const __half*>(call.pages) +
          row_page_at(page, call.row_layer_halves, group * heads + h, call.key_dim, call.value_dim);
      const __half* const k = rows + slot * call.key_dim;
      const __half* const v = rows + kRowPageTokens * call.key_dim + slot * call.value_dim;
      const float* const mu = means + h * call.key_dim;
      float* const to = z + h * call.key_dim * kTokens + t;
      for (int j = threadIdx.x % 16; j < pairs; j += 16) {
        const PairPlace at = pair_place(j, pairs, call.neighbours);
        const float2 turn = __ldg(turns + j), offset = __ldg(offsets + j);
        const float x = __half2float(k[at.first]) / call.rope_magnitude;
        const float y = __half2float(k[at.second]) / call.rope_magnitude;
        const float a = mu[at.first], b = mu[at.second];
        to[at.first * kTokens] = (x * turn.x + y * turn.y) - (a * offset.x - b * offset.y);
        to[at.second * kTokens] = (y * turn.x - x * turn.y) - (a * offset.y + b * offset.x);
      }
      for (int j = 2 * pairs + threadIdx.x % 16; j < call.key_dim; j += 16) {
        to[j * kTokens] = __half2float(k[j]) - mu[j];
      }
      float* const value = z + (keys + h * call.value_dim) * kTokens + t;
      const float* const m = means + keys + h * call.value_dim;
      for (int j = threadIdx.x % 16; j < call.value_dim; j += 16) {
        value[j * kTokens] = __half2float(v[j]) - m[j];
      }
    }
  }
}

// to: [blocks][groups][components][kTokens].
template <int kTokens>
__global__ void __launch_bounds__(kThreads)
    analyse_kernel(const __grid_constant__ EncodeCall call, const AnalysisMemory memory,
                   int first_half, float* to) {
  extern __shared__ __align__(16) char shared[];
  const int group = blockIdx.y, own = static_cast<int>(threadIdx.x) % kComponents;
  const int sharer = static_cast<int>(threadIdx.x) / kComponents;
  const int width = call.group_heads * (call.key_dim + call.value_dim),
            components = call.components;
  const BlockTokens<kTokens> tokens(call, first_half);
  float* const z = reinterpret_cast<float*>(shared + memory.z);
  float* const sums = reinterpret_cast<float*>(shared + memory.sums);
  gather<kTokens>(call, *tokens.item, group, tokens.position, z);
  __syncthreads();
  const int first = static_cast<int>(blockIdx.z) * kComponents,
            p = first + own;  // components come in whole 64
  const int begin = width * sharer / kSharers, end = width * (sharer + 1) / kSharers;
  float sum[kTokens] = {};
  const float* a =
      call.group_table[group].analysis + static_cast<std::int64_t>(begin) * components + p;
  // Few blocks may run: what they wait for has to be asked for together.
#pragma unroll 8
  for (int j = begin; j < end; ++j, a += components) {
    const float x = __ldg(a);
    const float4* const row = reinterpret_cast<const float4*>(z + j * kTokens);
#pragma unroll
    for (int i = 0; i < kTokens / 4; ++i) {
      const float4 v = row[i];
      sum[4 * i] = fmaf(x, v.x, sum[4 * i]);
      sum[4 * i + 1] = fmaf(x, v.y, sum[4 * i + 1]);
      sum[4 * i + 2] = fmaf(x, v.z, sum[4 * i + 2]);
      sum[4 * i + 3] = fmaf(x, v.w, sum[4 * i + 3]);
    }
  }
#pragma unroll
  for (int i = 0; i < kTokens; ++i) sums[(sharer * kTokens + i) * kComponents + own] = sum[i];
  __syncthreads();
  float* const out =
      to + ((static_cast<std::int64_t>(blockIdx.x) * call.groups + group) * components + first) *
               kTokens;
  for (int i = threadIdx.x; i < kComponents * kTokens; i += kThreads) {
    const float* const parts = sums + i % kTokens * kComponents + i / kTokens;
    float all = parts[0];
#pragma unroll
    for (int k = 1; k < kSharers; ++k) all += parts[k * kTokens * kComponents];
    out[i] = all;
  }
}

__device__ float sum_of_warp(float x) {
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

// GainRule::gain_of, by a warp; c: of one token, `stride` apart.
__device__ float gain_of(const GainRule& rule, const float* c, int stride) {
  const int lane = threadIdx.x & 31;
  float squares = 0.0f;
#pragma unroll 4
  for (int p = lane; p < rule.places; p += 32) {
    const float x = c[p * stride] * rule.inverse_sigma[p];
    squares = fmaf(x, x, squares);
  }
  const float rms = sqrtf(sum_of_warp(squares) / rule.stored);
  float gain = rms;
  for (int round = 0; round < GainRule::kRounds; ++round) {
    float met = 0.0f, reached = 0.0f;
#pragma unroll 4
    for (int p = lane; p < rule.places; p += 32) {
      const float size = fabsf(c[p * stride]), reach = rule.reach[p];
      const float r = size > gain * reach ? reach : 0.0f;
      met = fmaf(r, size, met);
      reached = fmaf(r, r, reached);
    }
    met = sum_of_warp(met);
    reached = sum_of_warp(reached);
    if (!(met > 0.0f)) break;
    gain = fmaxf(rms, met / (rule.fine + reached));
  }
  return gain;
}

// The code of a token's gain and the factor of its components, by a warp for each token.
template <int kTokens>
__device__ void find_gains(const EncodeCall::Group& code, const float* c, std::int8_t* gains,
                           float* factors) {
  for (int t = threadIdx.x >> 5; t < kTokens; t += kThreads / 32) {
    float level = 0.0f;
    if (code.has_gain) {
      const float gain = gain_of(code.gain, c + t, kTokens);
      level = gain > 0x1p-16f ? fminf(fmaxf(roundf(8.0f * log2f(gain)), -128.0f), 127.0f) : -128.0f;
    }
    if ((threadIdx.x & 31) != 0) continue;
    gains[t] = static_cast<std::int8_t>(level);
    factors[t] = code.has_gain ? 1.0f / exp2f(level / 8.0f) : 1.0f;
  }
}

// kTokens of a block; from: as analyse_kernel<kOfAnalysis> leaves it.
template <int kTokens, int kOfAnalysis>
__global__ void __launch_bounds__(kThreads)
    pack_kernel(const __grid_constant__ EncodeCall call, const Memory memory, int first_half,
                const float* from) {
  extern __shared__ __align__(16) char shared[];
  const int group = blockIdx.y;
  const BlockTokens<kTokens> tokens(call, first_half);
  const EncodeItem& item = *tokens.item;
  const int position = tokens.position;
  float* const c = reinterpret_cast<float*>(shared + memory.c);
  auto* const words = reinterpret_cast<std::uint32_t*>(shared + memory.tile);
  auto* const factors = reinterpret_cast<float*>(shared + memory.gains);
  auto* const gains = reinterpret_cast<std::int8_t*>(factors + kTokens);
  const EncodeCall::Group& code = call.group_table[group];
  const int components = call.components;
  const int tile_bytes = call.tile_bytes[group], tile_words = (tile_bytes - kTileTail) / 4;
  static_assert(kTokens == 4);
  const int analysis = static_cast<int>(blockIdx.x) * kTokens / kOfAnalysis;
  const auto* const made_before = reinterpret_cast<const float4*>(
      from +
      (static_cast<std::int64_t>(analysis) * call.groups + group) * components * kOfAnalysis +
      static_cast<int>(blockIdx.x) * kTokens % kOfAnalysis);
  for (int i = threadIdx.x; i < components; i += kThreads) {
    reinterpret_cast<float4*>(c)[i] = made_before[i * (kOfAnalysis / 4)];
  }
  for (int i = threadIdx.x; i < tile_words; i += kThreads) words[i] = 0;
  __syncthreads();
  find_gains<kTokens>(code, c, gains, factors);
  __syncthreads();
  const int first = position % kTileTokens;
  const std::uint8_t* const widths = call.chunk_widths + group * kMaxChunks;
  const std::int32_t* const offsets = call.chunk_offsets + group * kMaxChunks;
  const short4* const quad_digits = call.quad_digits + group * (components / 4);
#pragma unroll 2
  for (int i = threadIdx.x; i < components * kTokens; i += kThreads) {
    const int p = i / kTokens, t = i % kTokens;
    if (code.inverse_steps[p] == 0.0f) continue;
    const float level = floorf(c[i] * factors[t] * code.inverse_steps[p]);
    const float lowest = code.lowest[p];
    auto u = static_cast<std::uint32_t>(fminf(fmaxf(level, lowest), code.highest[p]) - lowest);
    const short4 digits = __ldg(quad_digits + p / 4);
    const int at[kMaxDigits] = {digits.x, digits.y, digits.z, digits.w};
#pragma unroll
    for (int d = 0; d < kMaxDigits; ++d) {
      if (at[d] < 0) break;
      const int chunk = at[d] / kChunkQuads, bits = widths[chunk];
      const DigitField field = field_of(bits, first + t, at[d] % kChunkQuads * 4 + p % 4);
      atomicOr(words + offsets[chunk] + field.word, (u & ((1u << bits) - 1u)) << field.shift);
      u >>= 2;
    }
  }
  __syncthreads();
  std::byte* const tile =
      call.pages + call.group_offsets[group] +
      std::int64_t{item.code_pages[position / kPageTokens]} * kPageUnit +
      static_cast<std::int64_t>(position % kPageTokens / kTileTokens) * tile_bytes;
  auto* const to = reinterpret_cast<std::uint32_t*>(tile);
  // By halves of words, each of which belongs to one token: other blocks write the tile's others.
  auto* const halves = reinterpret_cast<std::uint16_t*>(tile);
  const auto* const made = reinterpret_cast<const std::uint16_t*>(words);
  for (int k = 0; k < call.chunks; ++k) {
    for (int i = threadIdx.x; i < 2 * chunk_words(widths[k]); i += kThreads) {
      if (token_of_half(widths[k], i) / kTokens == first / kTokens) {
        halves[2 * offsets[k] + i] = made[2 * offsets[k] + i];
      }
    }
  }
  if (threadIdx.x < kTokens) {
    reinterpret_cast<std::int8_t*>(tile)[4 * tile_words + gain_byte(first + threadIdx.x)] =
        gains[threadIdx.x];
  }
  // Nothing escapes here, of the other half neither; a page may have held anything before.
  if (threadIdx.x == 0) to[tile_words + kTileTokens / 4] = 0;
}

template <int kTokens>
cudaError_t launch(const EncodeCall& call, int width, const EncodeScratch& scratch,
                   cudaStream_t stream) {
  const AnalysisMemory analysis(width, kTokens);
  const Memory memory(call.components, call.most_tile_bytes, kPacked);
  constexpr auto pack = pack_kernel<kPacked, kTokens>;
  cudaError_t error = allow_shared_bytes(analyse_kernel<kTokens>, analysis.bytes);
  if (error == cudaSuccess) error = allow_shared_bytes(pack, memory.bytes);
  const int most = static_cast<int>(scratch.bytes / encode_scratch_bytes(call, 1));
  for (int first = 0; first < call.total_halves && error == cudaSuccess; first += most) {
    const int halves = std::min(most, call.total_halves - first);
    const auto groups = static_cast<unsigned>(call.groups);
    const dim3 packs(static_cast<unsigned>(halves * (16 / kPacked)), groups);
    const dim3 analyses(static_cast<unsigned>(halves * (16 / kTokens)), groups,
                        static_cast<unsigned>(call.components / kComponents));
    analyse_kernel<kTokens>
        <<<analyses, kThreads, static_cast<std::size_t>(analysis.bytes), stream>>>(
            call, analysis, first, scratch.components);
    pack<<<packs, kThreads, static_cast<std::size_t>(memory.bytes), stream>>>(call, memory, first,
                                                                              scratch.components);
    error = cudaGetLastError();
  }
  return error;
}

}  // namespace

std::size_t encode_scratch_bytes(const EncodeCall& call, std::int32_t halves) {
  return sizeof(float) * 16 * static_cast<std::size_t>(halves) *
         static_cast<std::size_t>(call.groups) * static_cast<std::size_t>(call.components);
}

cudaError_t launch_encode(const EncodeCall& call, const EncodeScratch& scratch,
                          cudaStream_t stream) {
  if (call.total_halves == 0) return cudaSuccess;
  const int width = call.group_heads * (call.key_dim + call.value_dim);
  // Wide groups: half as many tokens, whose z fits.
  return AnalysisMemory(width, 16).bytes <= 160 * 1024 ? launch<16>(call, width, scratch, stream)
                                                       : launch<8>(call, width, scratch, stream);
}

}  // namespace kvspan::cuda
