// SPDX-License-Identifier: Apache-2.0
// Compiled for the machine at hand (-march=native), so that the yardstick is the widest FMA it has.
#include "bench/machine.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <ctime>
#include <map>
#include <vector>

#include "base/memory_sweep.h"
#include "base/thread_pool.h"

namespace kvspan::bench {
namespace {

template <class Pass>
double least_seconds(int passes, Pass pass) {
  double least = 1e300;
  for (int i = 0; i < passes; ++i) {
    const double start = busy_seconds();
    pass();
    least = std::min(least, busy_seconds() - start);
  }
  return least;
}

}  // namespace

double busy_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double memory_bytes_per_second(int threads) {
  static std::map<int, double> measured;
  if (const auto found = measured.find(threads); found != measured.end()) return found->second;
  constexpr std::size_t kWords = std::size_t{256} << 17;  // 256 MiB
  const std::vector<std::uint64_t> words(kWords, 1);
  ThreadPool pool(threads);
  std::atomic<std::uint64_t> total{0};
  const double time =
      least_seconds(15, [&] { pool.run([&](Team& team) { total += sweep(words, team); }); });
  return measured[threads] = total == 0 ? 0.0 : static_cast<double>(kWords * 8) * threads / time;
}

namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16, kChains = 24;
#elif defined(__AVX__)
constexpr int kWidth = 8, kChains = 12;
#else
constexpr int kWidth = 4, kChains = 24;
#endif
typedef float Vector __attribute__((vector_size(kWidth * 4)));

// Independent chains of FMAs, one register each (an array would stay in memory).
template <int N>
struct Chains {
  Vector value;
  Chains<N - 1> others;
  [[gnu::always_inline]] void start(const Vector& x) {
    value = x * static_cast<float>(N);  // equal chains would become one
    others.start(x);
  }
  [[gnu::always_inline]] void step(const Vector& factor, const Vector& addend) {
#if defined(__aarch64__)
    // FMLA adds to its target; of value * factor + addend the compiler would make two instructions.
    asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(value) : "w"(factor), "w"(addend));
#else
    value = value * factor + addend;
#endif
    others.step(factor, addend);
  }
  [[gnu::always_inline]] Vector sum() const {
    return value + others.sum();
  }
};
template <>
struct Chains<0> {
  void start(const Vector&) {}
  void step(const Vector&, const Vector&) {}
  Vector sum() const { return Vector{}; }
};

}  // namespace

double fma_flops_per_second() {
  static const double measured = [] {
    constexpr int kRounds = 1'000'000;
    const double time = least_seconds(15, [] {
      Vector factor{}, addend{};
      factor += 0.999f;
      addend += 0.001f;
      Chains<kChains> chains;
      chains.start(addend);
      for (int i = 0; i < kRounds; ++i) chains.step(factor, addend);
      const Vector total = chains.sum();
      asm volatile("" : : "m"(total));
    });
    return 2.0 * kWidth * kChains * kRounds / time;
  }();
  return measured;
}

}  // namespace kvspan::bench
