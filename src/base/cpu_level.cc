// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_level.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>

#include "base/fail.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kvspan {
namespace {

constexpr std::array<std::string_view, 8> kNames{"ref",    "neon",        "neon-i8mm",   "avx2",
                                                 "avx512", "avx512-vnni", "avx512-vbmi", "amx"};

#if defined(__x86_64__)
// Tiles are used by leave of the system, which has to save them with the other registers.
bool may_use_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kTiles = 1u << 24, kBytes = 1u << 25;
  if ((d & kTiles) == 0 || (d & kBytes) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

std::vector<CpuLevel> detect() {
  std::vector<CpuLevel> levels{CpuLevel::kReference};
#if defined(__aarch64__)
  const unsigned long caps = getauxval(AT_HWCAP);
  if ((caps & HWCAP_ASIMDHP) && (caps & HWCAP_ASIMDDP)) {
    levels.push_back(CpuLevel::kNeon);
    if (getauxval(AT_HWCAP2) & HWCAP2_I8MM) levels.push_back(CpuLevel::kNeonI8mm);
  }
#elif defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    levels.push_back(CpuLevel::kAvx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      levels.push_back(CpuLevel::kAvx512);
      if (__builtin_cpu_supports("avx512vnni")) {
        levels.push_back(CpuLevel::kAvx512Vnni);
        if (__builtin_cpu_supports("avx512vbmi")) {
          levels.push_back(CpuLevel::kAvx512Vbmi);
          if (may_use_tiles()) levels.push_back(CpuLevel::kAmx);
        }
      }
    }
  }
#endif
  return levels;
}

std::atomic<int> forced_level{-1};

std::string list_of_levels(const std::vector<CpuLevel>& levels) {
  std::string text;
  for (const CpuLevel level : levels) {
    if (!text.empty()) text += ", ";
    text += name_of(level);
  }
  return text;
}

}  // namespace

std::string_view name_of(CpuLevel level) noexcept {
  return kNames[static_cast<std::size_t>(level)];
}

const std::vector<CpuLevel>& available_cpu_levels() {
  static const std::vector<CpuLevel> levels = detect();
  return levels;
}

CpuLevel cpu_level() noexcept {
  const int forced = forced_level.load(std::memory_order_relaxed);
  return forced >= 0 ? static_cast<CpuLevel>(forced) : available_cpu_levels().back();
}

Status force_cpu_level(CpuLevel level) {
  const auto& levels = available_cpu_levels();
  if (std::find(levels.begin(), levels.end(), level) == levels.end()) {
    return fail(ErrorCode::kUnsupported, "this processor has no level '{}'; it has: {}",
                name_of(level), list_of_levels(levels));
  }
  forced_level.store(static_cast<int>(level), std::memory_order_relaxed);
  return {};
}

Result<CpuLevel> parse_cpu_level(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<CpuLevel>(i);
  }
  return fail(ErrorCode::kInvalidArgument, "unknown CPU level '{}'; this processor has: {}", name,
              list_of_levels(available_cpu_levels()));
}

}  // namespace kvspan
