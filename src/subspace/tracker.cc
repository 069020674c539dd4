// SPDX-License-Identifier: Apache-2.0
// What all trackers share: checks at the door, the frame around saved bytes, certificates.
#include "subspace/tracker.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/byte_frame.h"
#include "base/expect.h"
#include "base/fail.h"
#include "linalg/finite.h"
#include "linalg/qr.h"
#include "subspace/frequent_directions.h"
#include "subspace/gram_tracker.h"
#include "subspace/oja.h"

namespace kvspan {
namespace {

constexpr FrameFormat kFormat{"tracker", "KVSPTRK", 1};

Status check_weights(std::span<const float> weights) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] >= 0.0f && std::isfinite(weights[i])) continue;
    return fail(ErrorCode::kInvalidArgument,
                "weights: {} at row {}; finite numbers from 0 are allowed", weights[i], i);
  }
  return {};
}

Status check_size(MatrixView rows, std::span<const float> weights) {
  for (std::size_t i = 0; i < rows.shape[0]; ++i) {
    const float factor = weights.empty() ? 1.0f : std::sqrt(weights[i]);
    const float limit = factor > 1e-30f ? kLargestTrackedEntry / factor : 3e38f;
    const float* row = rows.row(i);
    float largest = 0.0f;
    for (std::size_t j = 0; j < rows.shape[1]; ++j) largest = std::max(largest, std::abs(row[j]));
    if (largest <= limit) continue;
    for (std::size_t j = 0; j < rows.shape[1]; ++j) {
      if (std::abs(row[j]) <= limit) continue;
      return fail(ErrorCode::kInvalidArgument,
                  "rows to track: {} at row {}, column {} (times {} for its weight); magnitudes up "
                  "to {} are allowed",
                  row[j], i, j, factor, kLargestTrackedEntry);
    }
  }
  return {};
}

}  // namespace

std::string_view name_of(TrackerKind kind) noexcept {
  switch (kind) {
    case TrackerKind::kFrequentDirections:
      return "frequent directions";
    case TrackerKind::kOja:
      return "oja";
    case TrackerKind::kGram:
      return "gram";
  }
  return "unknown";
}

Status Tracker::update(MatrixView rows, std::span<const float> weights) {
  KVSPAN_EXPECT(rows.shape[0] == 0 || rows.shape[1] == dim(), "rows as wide as the tracker");
  KVSPAN_EXPECT(weights.empty() || weights.size() == rows.shape[0], "one weight per row");
  if (rows.shape[0] == 0) return {};
  KVSPAN_CHECK_OK(detail::check_rows(rows, weights));
  absorb(rows, weights);
  return {};
}

Status Tracker::merge(const Tracker& other) {
  if (kind() != other.kind()) {
    return fail(ErrorCode::kInvalidArgument, "merge: a tracker of kind {} cannot take one of {}",
                name_of(kind()), name_of(other.kind()));
  }
  if (dim() != other.dim()) {
    return fail(ErrorCode::kInvalidArgument, "merge: dimension {} differs from {}", other.dim(),
                dim());
  }
  if (this == &other) return absorb_tracker(*other.clone(nullptr));
  return absorb_tracker(other);
}

std::vector<std::byte> Tracker::save() const {
  ByteWriter out;
  begin_frame(kFormat, static_cast<std::uint32_t>(kind()), out);
  write_payload(out);
  end_frame(out);
  return std::move(out.bytes());
}

Result<std::unique_ptr<Tracker>> load_tracker(std::span<const std::byte> bytes,
                                              std::shared_ptr<Ledger> ledger) {
  KVSPAN_TRY(OpenFrame frame, open_frame(kFormat, bytes));
  ByteReader& payload = frame.payload;
  switch (static_cast<TrackerKind>(frame.kind)) {
    case TrackerKind::kFrequentDirections:
      return FrequentDirections::read_payload(payload, std::move(ledger));
    case TrackerKind::kOja:
      return OjaTracker::read_payload(payload, std::move(ledger));
    case TrackerKind::kGram:
      return GramTracker::read_payload(payload, std::move(ledger));
  }
  return fail(ErrorCode::kCorruptData,
              "tracker: kind at byte 12 is {}; allowed: 1 (frequent directions), 2 (oja), 3 (gram)",
              frame.kind);
}

namespace detail {

Status check_dim(std::size_t dim) {
  if (dim >= 1 && dim <= kMaxTrackerDim) return {};
  return fail(ErrorCode::kInvalidArgument, "tracker: dimension {}; 1 to {} are allowed", dim,
              kMaxTrackerDim);
}

Status check_rows(MatrixView rows, std::span<const float> weights) {
  KVSPAN_CHECK_OK(check_finite(rows, "rows to track"));
  KVSPAN_CHECK_OK(check_weights(weights));
  return check_size(rows, weights);
}

SubspaceCertificate certify(std::span<const double> squared, double delta, double drift,
                            std::size_t r, std::size_t dim) {
  const double next = r < squared.size() ? squared[r] : 0.0;
  const double largest = squared.empty() ? 0.0 : squared[0];
  // The returned basis differs from the exact leading vectors by rounding each row to f32 (at most
  // 2^-24 of its length) and by the eigenproblem in f64; twice that for its projection.
  const double turn = 2.1 * 0x1p-24 * std::sqrt(static_cast<double>(r)) +
                      100.0 * static_cast<double>(dim) * 0x1p-52;
  const double lost = std::sqrt(next + delta + drift);
  const double held = std::sqrt(largest + delta + drift);
  const double bound = (lost + turn * held) * (lost + turn * held);
  return {next, delta, std::max(bound - next - delta, 0.0)};
}

Basis basis_from(const MatrixD& scaled, std::span<const double> squared, std::size_t r) {
  const std::size_t d = scaled.cols();
  Basis basis{Matrix(), std::vector<double>(r)};
  MatrixD directions(r, d);
  // Below this a squared singular value is noise of the Gram (right_singular.h).
  const double noise = squared.empty() ? 0.0 : 16.0 * static_cast<double>(d) * 0x1p-52 * squared[0];
  for (std::size_t i = 0; i < std::min(r, scaled.rows()); ++i) {
    if (!(squared[i] > noise)) break;
    const double unit = 1.0 / std::sqrt(squared[i]);
    for (std::size_t j = 0; j < d; ++j) directions(i, j) = unit * scaled(i, j);
    basis.squared[i] = squared[i];
  }
  basis.rows = orthonormal_rows(directions.view()).value();
  return basis;
}

}  // namespace detail
}  // namespace kvspan
