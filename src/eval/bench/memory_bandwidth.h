// SPDX-License-Identifier: Apache-2.0
// What the machine's memory gives at best: the roof over every decoded token, which has to read the
// weights and the cache once.
#pragma once

namespace kvspan {

// Bytes a second that `threads` threads read together from 256 MiB, the best of several passes;
// wall time, some tenths of a second.
double memory_bytes_per_second(int threads);

}  // namespace kvspan
