// SPDX-License-Identifier: Apache-2.0
// What this machine can do at best, measured in the run that quotes it: reading memory, and fused
// multiply-adds in registers.
#pragma once

namespace kvspan::bench {

// Processor time this program has used, all threads together. Divided by the number of threads, all
// busy, it is the time of a run on a machine whose cores nobody else uses; rates here are taken by
// it, because wall time measures the neighbours.
double busy_seconds();

// Bytes a second that `threads` threads read together from memory far larger than any cache; the
// best of several passes, measured once for each thread count.
double memory_bytes_per_second(int threads);

// Floating-point operations a second (an FMA counts two) of one thread, f32 vectors.
double fma_flops_per_second();

}  // namespace kvspan::bench
