// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same on every platform and compiler: xoshiro256** seeded by
// splitmix64 (Blackman and Vigna). std:: distributions differ between libraries, so ours are
// spelled out.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace kvspan {

class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept {
    for (auto& word : state_) {
      seed += 0x9e3779b97f4a7c15ull;
      std::uint64_t z = seed;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
      word = z ^ (z >> 31);
    }
  }

  std::uint64_t bits() noexcept {
    const std::uint64_t result = rotate_left(state_[1] * 5, 7) * 9;
    const std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotate_left(state_[3], 45);
    return result;
  }

  // Uniform in [0, 1).
  double uniform() noexcept { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  // Uniform in 0 .. count-1; count > 0. The bias of the multiplication is below 2^-32.
  std::uint32_t below(std::uint32_t count) noexcept {
    return static_cast<std::uint32_t>(((bits() >> 32) * count) >> 32);
  }
  // Standard normal, by Box and Muller.
  double normal() noexcept {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  static std::uint64_t rotate_left(std::uint64_t x, int k) noexcept {
    return (x << k) | (x >> (64 - k));
  }
  std::array<std::uint64_t, 4> state_;
};

}  // namespace kvspan
