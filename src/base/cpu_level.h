// SPDX-License-Identifier: Apache-2.0
// Which instruction-set level the kernels use. Found once from the processor; a flag can force a
// lower one, so that every level a machine has can be tested and timed on it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvspan/result.h"

namespace kvspan {

enum class CpuLevel : std::uint8_t {
  kReference,  // plain loops: defines what is right
  kNeon,       // Armv8.2: fp16 arithmetic and dotprod (Neoverse N1, Apple M1, Cortex-A76 and later)
  kNeonI8mm,   // kNeon with int8 matrix products (Neoverse V1/N2, Apple M2 and later)
  kAvx2,       // AVX2, FMA, F16C (Haswell, Zen and later)
  kAvx512,     // AVX-512 F/BW/DQ/VL (Skylake's servers and later)
  kAvx512Vnni,  // kAvx512 with VNNI (Cascade Lake and later)
  kAvx512Vbmi,  // kAvx512Vnni with VBMI (Ice Lake, Zen 4 and later)
  kAmx,  // kAvx512Vbmi with tiles of bytes (Sapphire Rapids and later), where the system allows it
};

std::string_view name_of(CpuLevel level) noexcept;

// All levels this processor runs, lowest first; the first is always kReference.
const std::vector<CpuLevel>& available_cpu_levels();

// The level in use: the highest available unless one was forced.
CpuLevel cpu_level() noexcept;
// Takes effect for caches and kernels chosen afterwards. Fails, naming the available levels, for
// one this processor lacks.
Status force_cpu_level(CpuLevel level);
Result<CpuLevel> parse_cpu_level(std::string_view name);

}  // namespace kvspan
