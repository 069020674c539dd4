// SPDX-License-Identifier: Apache-2.0
// What compute-sanitizer's racecheck makes of named barriers: a program without a race, in the manner of
// attend_bands. Teams of two warps pass their own barrier some times; then all warps write, meet at the
// block's barrier, and read. With an argument each team passes as often as the others: then racecheck reports
// nothing. Without one they do so unequally often, and it reports the reads after the block's barrier, which
// orders them all the same. scripts/gpu_test.sh runs both.
#include <cstdio>

__global__ void named_barriers(bool equal, float* out) {
  __shared__ float all[12];
  const int warp = threadIdx.x / 32, team = warp / 2;
  for (int i = 0; i < (equal ? 4 : 4 + team); ++i) asm volatile("bar.sync %0, 64;" ::"r"(team + 1) : "memory");
  if (threadIdx.x % 32 == 0) all[warp] = static_cast<float>(warp);
  __syncthreads();
  float sum = 0.0f;
  for (int w = 0; w < 12; ++w) sum += all[w];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

int main(int argc, char**) {
  constexpr int kBlocks = 16, kThreads = 384;
  float *out = nullptr, last = 0.0f;
  if (cudaMalloc(&out, kBlocks * kThreads * sizeof(float)) != cudaSuccess) return 2;
  named_barriers<<<kBlocks, kThreads>>>(argc > 1, out);
  if (cudaMemcpy(&last, out + kBlocks * kThreads - 1, sizeof(float), cudaMemcpyDeviceToHost) != cudaSuccess) return 2;
  std::printf("%g of 66\n", last);
  return last == 66.0f ? 0 : 1;
}
