// SPDX-License-Identifier: Apache-2.0
// What the ledger counts is what a process takes: with bands instead of full its peak is lower by
// what the two caches and the codes differ. A full-size temporary anywhere, a calibration that is
// held whole, or memory of the design that is not given back shows here.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <numeric>
#include <string>

#include "base/large_blocks.h"
#include "base/memory.h"
#include "kvspan/cache.h"
#include "tests/method/synthetic.h"

namespace kvspan::testing {
namespace {

constexpr std::int32_t kLayers = 12, kHeads = 2, kDim = 64;
constexpr std::int32_t kTokens = 8192, kBlock = 256;

// A line of /proc/self/status in bytes.
double status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0.0;
    if (word == name && status >> kilobytes) return 1024.0 * kilobytes;
  }
  return 0.0;
}

// Without the pages of the program itself that are in use, of which a method with more code has
// more: with AVX-512 some 2 MB.
double own_bytes(const std::string& name) {
  return status_bytes(name) - status_bytes("RssFile:");
}

struct Taken {
  double peak = 0.0;     // bytes that the process grew by at its peak
  double counted = 0.0;  // on the ledger at the end, shared codes included
};

class PeakMemory : public ::testing::Test {
 protected:
  // One layer's rows and numbers serve all.
  PeakMemory() : text_(synthetic_shape(1, kHeads, kDim), 2 * kBlock, 5) {
    shape_ = synthetic_shape(kLayers, kHeads, kDim);
    for (LayerShape& layer : shape_.layers) layer = text_.shape().layers[0];
    calibration_ = text_.calibration();
    const LayerCalibration numbers = calibration_.layers[0];
    calibration_.layers.assign(kLayers, {});
    for (LayerCalibration& layer : calibration_.layers) layer.residual_energy = 1.0;
    calibration_.read_layer = [numbers](std::size_t) { return Result<LayerCalibration>(numbers); };
  }

  // In a process of its own, which ends by itself. `hold_whole`: with all layers of the calibration
  // in memory at once.
  Taken measure(const std::string& recipe, bool hold_whole = false) const {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe(pipe.data()), 0);
    const pid_t child = fork();
    if (child == 0) {
      const Taken taken = run(recipe, hold_whole);
      const bool sent = ::write(pipe[1], &taken, sizeof taken) == sizeof taken;
      _exit(sent ? 0 : 1);
    }
    close(pipe[1]);
    Taken taken;
    EXPECT_EQ(::read(pipe[0], &taken, sizeof taken), static_cast<ssize_t>(sizeof taken));
    close(pipe[0]);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    return taken;
  }

 private:
  Taken run(const std::string& recipe, bool hold_whole) const {
    keep_large_blocks_apart();  // as the program does
    return_free_memory();
    const double before = own_bytes("VmRSS:");
    Calibration calibration = calibration_;
    if (hold_whole) calibration = read_whole(shape_, calibration_).value();
    const auto factory = CacheFactory::create(shape_, recipe, &calibration).value();
    const auto cache = factory.make();
    const auto scratch = make_attention_scratch();
    TeamState state;
    Team team(state, 0, 1);
    std::vector<float> out(static_cast<std::size_t>(2 * kHeads * kDim));
    std::vector<std::int32_t> positions(kBlock);
    for (std::int32_t first = 0; first < kTokens; first += kBlock) {
      std::iota(positions.begin(), positions.end(), first);
      KvRows rows = text_.rows(0, first % (2 * kBlock), kBlock);
      rows.positions = positions;
      Queries query = text_.queries(0, kBlock - 1, 1);
      query.positions = std::span(positions).last(1);
      for (int l = 0; l < kLayers; ++l) {
        const bool fine =
            cache->append(l, rows, team).has_value() &&
            cache->attend(l, query, {out.data(), {1, 2 * kHeads, kDim}}, *scratch, team)
                .has_value() &&
            cache->settle(l, team).has_value();
        if (!fine) _exit(2);
      }
    }
    const CacheBytes bytes = cache->bytes();
    return {own_bytes("VmHWM:") - before, static_cast<double>(bytes.total + bytes.shared)};
  }

  SyntheticText text_;
  CacheShape shape_;
  Calibration calibration_;
};

TEST_F(PeakMemory, OfBandsIsLowerThanOfFullByWhatTheLedgerSays) {
  const Taken full = measure("full"), bands = measure("bands:bits=2");
  const double counted = full.counted - bands.counted, saved = full.peak - bands.peak;
  EXPECT_GT(counted, 0.7 * full.counted);
  EXPECT_NEAR(saved, counted, 0.05 * counted)
      << "full " << full.peak << " for " << full.counted << ", bands " << bands.peak << " for "
      << bands.counted;
  // What this is about would be seen.
  const Taken whole = measure("bands:bits=2", true);
  EXPECT_LT(full.peak - whole.peak, 0.95 * counted);
}

}  // namespace
}  // namespace kvspan::testing
