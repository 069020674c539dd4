// SPDX-License-Identifier: Apache-2.0
#include "subspace/frequent_directions.h"

#include <algorithm>
#include <cmath>

#include "base/expect.h"
#include "base/fail.h"
#include "linalg/right_singular.h"
#include "base/byte_stream.h"
#include "subspace/squared_length.h"

namespace kvspan {
namespace {

constexpr double kUnit = 0x1p-24;  // rounding to f32 changes a number by at most this share

Status check_options(std::size_t dim, const FrequentDirectionsOptions& options) {
  KVSPAN_CHECK_OK(detail::check_dim(dim));
  if (options.sketch_rows >= 1 && options.sketch_rows <= dim) return {};
  return fail(ErrorCode::kInvalidArgument,
              "frequent directions: {} sketch rows; 1 to the dimension {} are allowed",
              options.sketch_rows, dim);
}

}  // namespace

FrequentDirections::FrequentDirections(std::size_t dim, const FrequentDirectionsOptions& options,
                                       std::shared_ptr<Ledger> ledger)
    : dim_(dim),
      options_(options),
      buffer_(2 * options.sketch_rows * dim * sizeof(float), MemoryKind::kSketches,
              std::move(ledger)) {}

Result<std::unique_ptr<FrequentDirections>> FrequentDirections::create(
    std::size_t dim, const FrequentDirectionsOptions& options, std::shared_ptr<Ledger> ledger) {
  KVSPAN_CHECK_OK(check_options(dim, options));
  return std::unique_ptr<FrequentDirections>(
      new FrequentDirections(dim, options, std::move(ledger)));
}

void FrequentDirections::clear() noexcept {
  held_ = 0;
  rows_seen_ = 0;
  energy_ = delta_ = drift_ = 0.0;
}

void FrequentDirections::absorb(MatrixView rows, std::span<const float> weights) {
  for (std::size_t i = 0; i < rows.shape[0]; ++i) {
    append(rows.row(i), weights.empty() ? 1.0f : std::sqrt(weights[i]));
  }
  rows_seen_ += rows.shape[0];
}

void FrequentDirections::append(const float* row, float factor) {
  const double squared = static_cast<double>(factor) * factor * detail::squared_length(row, dim_);
  if (squared == 0.0) return;  // adds nothing to A'A, and would cost a place
  if (held_ == 2 * options_.sketch_rows) shrink();
  float* place = buffer_.as<float>() + held_ * dim_;
  for (std::size_t j = 0; j < dim_; ++j) place[j] = factor * row[j];
  // sqrt(w) and its product are rounded: two changes of at most 2^-24 in the length of the row.
  if (factor != 1.0f) drift_ += 4.1 * kUnit * squared;
  energy_ += squared;
  ++held_;
}

void FrequentDirections::shrink() {
  const std::size_t l = options_.sketch_rows;
  const RightSingular svd = right_singular(sketch(), std::min(l, dim_));
  const double amount = l < svd.squared.size() ? svd.squared[l] : 0.0;
  const double noise =
      100.0 * static_cast<double>(std::max(held_, dim_)) * 0x1p-53 * svd.squared[0];
  double kept = 0.0;
  held_ = 0;
  for (std::size_t i = 0; i < svd.scaled.rows(); ++i) {
    const double left = svd.squared[i] - amount;
    if (!(left > 0.0) || svd.squared[i] <= noise) break;
    const double factor = std::sqrt(left / svd.squared[i]);
    float* place = buffer_.as<float>() + held_++ * dim_;
    for (std::size_t j = 0; j < dim_; ++j) place[j] = static_cast<float>(factor * svd.scaled(i, j));
    kept += left;
  }
  delta_ += amount;
  // Rounding S to S + E with |E|_F <= 2^-24 |S|_F (plus subnormals) moves S'S by at most
  // 2 |S||E| + |E|^2; the Gram, its eigenproblem and rows dropped as noise by a multiple of 2^-53.
  const double change =
      kUnit * std::sqrt(kept) + 0x1p-150 * std::sqrt(static_cast<double>(held_ * dim_));
  drift_ += 2.0 * std::sqrt(std::max(svd.squared[0] - amount, 0.0)) * change + change * change +
            2.0 * noise;
}

Basis FrequentDirections::basis(std::size_t r) const {
  KVSPAN_EXPECT(r <= dim_, "no more directions than dimensions");
  if (held_ == 0) return detail::basis_from(MatrixD(0, dim_), {}, r);
  const RightSingular svd = right_singular(sketch(), std::min({r, held_, dim_}));
  return detail::basis_from(svd.scaled, svd.squared, r);
}

std::vector<double> FrequentDirections::spectrum() const {
  std::vector<double> squared =
      held_ == 0 ? std::vector<double>() : right_singular(sketch(), 0).squared;
  squared.resize(dim_, 0.0);
  return squared;
}

SubspaceCertificate FrequentDirections::certificate(std::size_t r) const {
  KVSPAN_EXPECT(r <= dim_, "no more directions than dimensions");
  return detail::certify(spectrum(), delta_, drift_, r, dim_);
}

std::unique_ptr<Tracker> FrequentDirections::clone(std::shared_ptr<Ledger> ledger) const {
  std::unique_ptr<FrequentDirections> copy(new FrequentDirections(dim_, options_, nullptr));
  copy->buffer_ = buffer_.clone(std::move(ledger));
  copy->held_ = held_;
  copy->rows_seen_ = rows_seen_;
  copy->energy_ = energy_;
  copy->delta_ = delta_;
  copy->drift_ = drift_;
  return copy;
}

Status FrequentDirections::absorb_tracker(const Tracker& other) {
  const auto& sketch = static_cast<const FrequentDirections&>(other);
  if (!(options_ == sketch.options_)) {
    return fail(ErrorCode::kInvalidArgument, "merge: {} sketch rows differ from {}",
                sketch.options_.sketch_rows, options_.sketch_rows);
  }
  const double energy = energy_ + sketch.energy_;
  for (std::size_t i = 0; i < sketch.held_; ++i) append(sketch.sketch().row(i), 1.0f);
  energy_ = energy;
  rows_seen_ += sketch.rows_seen_;
  delta_ += sketch.delta_;
  drift_ += sketch.drift_;
  return {};
}

void FrequentDirections::write_payload(ByteWriter& out) const {
  out.put(static_cast<std::uint32_t>(dim_));
  out.put(static_cast<std::uint32_t>(options_.sketch_rows));
  out.put(static_cast<std::uint64_t>(held_));
  out.put(rows_seen_);
  out.put(energy_);
  out.put(delta_);
  out.put(drift_);
  out.put_all(std::span<const float>(buffer_.as<float>(), held_ * dim_));
}

Result<std::unique_ptr<Tracker>> FrequentDirections::read_payload(ByteReader& in,
                                                                  std::shared_ptr<Ledger> ledger) {
  KVSPAN_TRY(const auto dim, in.get<std::uint32_t>("dimension"));
  KVSPAN_TRY(const auto rows, in.get<std::uint32_t>("sketch rows"));
  const FrequentDirectionsOptions options{rows};
  if (const Status status = check_options(dim, options); !status) {
    return Error{ErrorCode::kCorruptData, "tracker: at byte 24: " + status.error().message};
  }
  KVSPAN_TRY(const auto held, in.get<std::uint64_t>("held rows"));
  if (held > 2ull * rows) return in.wrong("held rows", 8, held, "up to twice the sketch rows");
  KVSPAN_TRY(const auto rows_seen, in.get<std::uint64_t>("rows seen"));
  double sums[3];
  KVSPAN_CHECK_OK(in.get_finite("energy, delta and drift", std::span<double>(sums), 1e300));
  for (const double sum : sums) {
    if (sum < 0.0) return in.wrong("energy, delta or drift", 24, sum, "0 or more");
  }
  KVSPAN_CHECK_OK(in.expect_left("sketch", held * dim * sizeof(float)));
  std::unique_ptr<FrequentDirections> tracker(
      new FrequentDirections(dim, options, std::move(ledger)));
  // Sums of rows up to the largest entry stay below this; shrinking cannot overflow f32.
  KVSPAN_CHECK_OK(
      in.get_finite("sketch", std::span<float>(tracker->buffer_.as<float>(), held * dim), 1e35f));
  tracker->held_ = held;
  tracker->rows_seen_ = rows_seen;
  tracker->energy_ = sums[0];
  tracker->delta_ = sums[1];
  tracker->drift_ = sums[2];
  return std::unique_ptr<Tracker>(std::move(tracker));
}

}  // namespace kvspan
