// SPDX-License-Identifier: Apache-2.0
// The one way in which kernels are chosen: a table names what there is by level, lowest first, and a level that has
// nothing of its own takes what the next lower one has. Tables are compiled for one processor family, so that levels
// of another never meet.
#pragma once

#include <cstddef>

#include "base/cpu_level.h"

namespace kvspan {

template <class Kernels>
struct KernelsOfLevel {
  CpuLevel level;
  Kernels kernels;
};

template <class Kernels, std::size_t kCount>
constexpr const Kernels& kernels_for(CpuLevel level, const KernelsOfLevel<Kernels> (&table)[kCount]) noexcept {
  std::size_t best = 0;  // kReference, which every table starts with
  for (std::size_t i = 1; i < kCount; ++i) {
    if (table[i].level <= level) best = i;
  }
  return table[best].kernels;
}

}  // namespace kvspan
