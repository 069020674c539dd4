// SPDX-License-Identifier: Apache-2.0
// The few instructions that C++ has no name for: small matrix products, copies into shared memory
// that end at a barrier, powers of two. Fragments as PTX lays them out: with g = lane / 4 and
// c = lane % 4 a thread holds
//     A  row g and g + 8, four (s8) or two (f16) neighbours of k at 4 c or 2 c; then k of the upper
//     half B  column g, the same k D  rows g (d[0], d[1]) and g + 8 (d[2], d[3]), columns 2 c and 2
//     c + 1
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace kvspan::cuda {

// d += A B, A unsigned bytes [16, 32], B signed [32, 8].
__device__ __forceinline__ void mma_u8_s8(int (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                          std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                          std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// d = A B.
__device__ __forceinline__ void mma_u8_s8_first(int (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                                std::uint32_t a2, std::uint32_t a3,
                                                std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(0));
}

__device__ __forceinline__ void mma_u8_u8(int (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                          std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                          std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_s8_s8(int (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                          std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                          std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// d += A B, A f16 [16, 16], B f16 [16, 8], sums in f32.
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint4& a, const uint2& b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

// d = A B + {x, y, x, y}.
__device__ __forceinline__ void mma_f16_from(float (&d)[4], const uint4& a, const uint2& b, float x,
                                             float y) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%10,%11,%10,%11};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "f"(x), "f"(y));
}

// Four matrices of 8 rows of 16 bytes each; lane l names row l % 8 of matrix l / 8. A thread gets
// word c of row g of each; transposed: 16 bits of column g of rows 2 c and 2 c + 1. They stay behind
// barriers that come before them, but not behind other reads.
__device__ __forceinline__ void load_matrices(std::uint32_t address, std::uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}
__device__ __forceinline__ void load_transposed(std::uint32_t address, std::uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}
__device__ __forceinline__ std::uint32_t load_shared(std::uint32_t address) {
  std::uint32_t x;
  asm volatile("ld.shared.u32 %0,[%1];" : "=r"(x) : "r"(address));
  return x;
}
__device__ __forceinline__ uint2 load_shared2(std::uint32_t address) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0,%1},[%2];" : "=r"(x.x), "=r"(x.y) : "r"(address));
  return x;
}

// Numbers that stay as they are once the address is known: may be read at any time from then on.
__device__ __forceinline__ uint4 load_constant4(std::uint32_t address) {
  uint4 x;
  asm("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address));
  return x;
}
__device__ __forceinline__ void store_shared(std::uint32_t address, std::uint32_t x) {
  asm volatile("st.shared.u32 [%0],%1;" ::"r"(address), "r"(x) : "memory");
}

__device__ __forceinline__ uint4 load_shared4(std::uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address));
  return x;
}

// Parameters lie in a memory that answers slowly the first time and one line after the other.
// Threads of the block's first warp ask for two kilobytes of them at once, for all that come later.
template <class Call>
__device__ __forceinline__ void ask_for_parameters(const Call& call) {
  static_assert(sizeof(Call) >= 2048);
  if (threadIdx.x < 32) {
    const int word = reinterpret_cast<const int*>(&call)[16 * threadIdx.x];
    asm volatile("" ::"r"(word));
  }
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// A barrier in shared memory that counts bytes of bulk copies. One thread makes and arms it.
__device__ __forceinline__ void make_barrier(std::uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// What threads wrote to shared memory as usual comes before copies that are asked for later.
__device__ __forceinline__ void before_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// To the second-level cache, for what is read soon, whole lines of 16 bytes.
__device__ __forceinline__ void ask_early(const void* from, std::int64_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(from) & ~std::uintptr_t{15};
  const auto last = reinterpret_cast<std::uintptr_t>(from) + static_cast<std::uintptr_t>(bytes);
  const auto size = static_cast<std::uint32_t>((last - first + 15) & ~std::uintptr_t{15});
  if (bytes > 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(first), "r"(size) : "memory");
}
// The line of an address to the second-level cache, and where its page lies to this processor. What others
// are still writing may be asked for: it is read later.
__device__ __forceinline__ void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// From here on what is in shared memory is named by its address there.

// How many bytes are to come before a barrier opens.
__device__ __forceinline__ void expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// bytes: a multiple of 16; both addresses too.
__device__ __forceinline__ void copy_bulk(std::uint32_t to, const void* from, std::uint32_t bytes,
                                          std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// The same of what is read once a call and is more than the second-level cache holds: it goes from there before
// what all blocks read, tables and the instructions of kernels too.
__device__ __forceinline__ void copy_stream(std::uint32_t to, const void* from, std::uint32_t bytes,
                                            std::uint32_t barrier) {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void wait_barrier(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done = 0;
  do {
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
        "p;}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}

}  // namespace kvspan::cuda
