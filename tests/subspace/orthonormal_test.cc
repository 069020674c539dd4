// SPDX-License-Identifier: Apache-2.0
// |BB' - I|_max <= 1e-5 in f32 after 1e5 updates.
#include <gtest/gtest.h>

#include "linalg/subspaces.h"
#include "subspace/frequent_directions.h"
#include "subspace/oja.h"
#include "tests/base/sweep.h"
#include "tests/subspace/streams.h"

namespace kvspan {
namespace {

constexpr std::size_t kUpdates = testing::sweep(100'000);
constexpr double kLimit = 1e-5;

// Row by row, the stream over and over, until every update has been made.
void feed(Tracker& tracker, const Matrix& rows) {
  for (std::size_t i = 0; i < kUpdates; ++i) {
    const Status status = tracker.update(MatrixView(rows.row(i % rows.rows()), {1, rows.cols()}));
    ASSERT_TRUE(status) << status.error().message;
  }
}

TEST(Orthonormal, FrequentDirectionsStayOrthonormal) {
  for (const Stream& stream : made_streams(4099, 32, 1)) {
    auto tracker = FrequentDirections::create(32, {.sketch_rows = 16}, nullptr);
    feed(**tracker, stream.rows);
    for (const std::size_t r : {1u, 8u, 16u, 32u}) {
      EXPECT_LE(orthonormality_defect((*tracker)->basis(r).rows.view()), kLimit) << stream.name;
    }
  }
}

TEST(Orthonormal, OjaStaysOrthonormalWithEveryNorm) {
  // One step per row, the most steps that 1e5 updates can make; heavy tails and constant rows are
  // where a basis without re-orthonormalisation falls apart.
  const auto streams = made_streams(4099, 24, 2);
  const std::pair<const char*, OjaNorm> cases[] = {{"heavy tails", OjaNorm::kNone},
                                                   {"massive tokens", OjaNorm::kToken},
                                                   {"constant", OjaNorm::kToken},
                                                   {"heavy tails", OjaNorm::kBatch}};
  for (const auto& [name, norm] : cases) {
    const auto stream = std::find_if(streams.begin(), streams.end(),
                                     [name = name](const Stream& s) { return s.name == name; });
    ASSERT_NE(stream, streams.end());
    auto tracker = OjaTracker::create(24, {.rank = 6, .eta = 0.05, .norm = norm, .batch_rows = 1},
                                      std::nullopt, nullptr);
    feed(**tracker, stream->rows);
    EXPECT_LE(orthonormality_defect((*tracker)->basis(6).rows.view()), kLimit) << name;
    EXPECT_LE(orthonormality_defect((*tracker)->basis(3).rows.view()), kLimit) << name;
  }
}

TEST(Orthonormal, OjaInBatchesStaysOrthonormalAtEveryScale) {
  for (const double scale : {1e-30, 1e-3, 1e3, 1e29}) {
    Random random(3);
    Matrix rows = falling_rows(4099, 32, 0.8, random);
    scale_rows(rows, [&](std::size_t) { return scale; });
    for (const OjaNorm norm : {OjaNorm::kNone, OjaNorm::kToken, OjaNorm::kBatch}) {
      auto tracker = OjaTracker::create(
          32, {.rank = 8, .eta = 0.05, .norm = norm, .batch_rows = 32}, std::nullopt, nullptr);
      feed(**tracker, rows);
      EXPECT_LE(orthonormality_defect((*tracker)->basis(8).rows.view()), kLimit) << scale;
    }
  }
}

}  // namespace
}  // namespace kvspan
