// SPDX-License-Identifier: Apache-2.0
#include "subspace/gram_tracker.h"

#include <algorithm>
#include <cmath>

#include "base/expect.h"
#include "base/fail.h"
#include "linalg/panel.h"
#include "linalg/symmetric_eigen.h"
#include "base/byte_stream.h"

namespace kvspan {
namespace {

using detail::kPanelAlign;
using detail::Panel;

constexpr std::size_t kBlockRows = 32;      // rows that share one pass over the Gram
constexpr double kSmallestScale = 0x1p-60;  // beyond it the sums are rescaled

Status check_options(std::size_t dim, const GramOptions& options) {
  KVSPAN_CHECK_OK(detail::check_dim(dim));
  if (options.decay >= 1e-3 && options.decay <= 1.0) return {};
  return fail(ErrorCode::kInvalidArgument, "gram: decay {}; 0.001 to 1 is allowed", options.decay);
}

// Doubles before strip i, and the stride of its rows.
std::size_t strip_offset(std::size_t i) {
  return kPanelAlign * kPanelAlign * (i * (i + 1) / 2);
}
std::size_t strip_stride(std::size_t i) {
  return kPanelAlign * (i + 1);
}

}  // namespace

GramTracker::GramTracker(std::size_t dim, const GramOptions& options,
                         std::shared_ptr<Ledger> ledger)
    : dim_(dim), options_(options) {
  gram_ = Buffer(gram_values() * sizeof(double), MemoryKind::kSketches, ledger);
  if (options.centred) {
    sum_ = Buffer(detail::padded(dim) * sizeof(double), MemoryKind::kSketches, ledger);
  }
}

Result<std::unique_ptr<GramTracker>> GramTracker::create(std::size_t dim,
                                                         const GramOptions& options,
                                                         std::shared_ptr<Ledger> ledger) {
  KVSPAN_CHECK_OK(check_options(dim, options));
  return std::unique_ptr<GramTracker>(new GramTracker(dim, options, std::move(ledger)));
}

std::size_t GramTracker::gram_values() const noexcept {
  return strip_offset(detail::padded(dim_) / kPanelAlign);
}
double GramTracker::weight() const noexcept {
  return scale_ * weight_;
}
double GramTracker::energy() const noexcept {
  return scale_ * energy_;
}

void GramTracker::absorb(MatrixView rows, std::span<const float> weights) {
  Panel block(std::min(kBlockRows, rows.shape[0]), dim_);
  std::size_t filled = 0;
  for (std::size_t i = 0; i < rows.shape[0]; ++i) {
    // When to rescale depends on the rows seen, never on how they were split.
    if (scale_ * options_.decay < kSmallestScale) {
      add(block, filled);
      filled = 0;
      rescale();
    }
    scale_ *= options_.decay;
    const double share = (weights.empty() ? 1.0 : static_cast<double>(weights[i])) / scale_;
    const double factor = std::sqrt(share);
    const float* from = rows.row(i);
    double* to = block.row(filled);
    for (std::size_t j = 0; j < dim_; ++j) to[j] = factor * from[j];
    energy_ += detail::inner_product(to, to, dim_);
    weight_ += share;
    for (std::size_t j = 0; j < dim_ && options_.centred; ++j) {
      sum_.as<double>()[j] += share * from[j];
    }
    if (++filled == block.rows()) {
      add(block, filled);
      filled = 0;
    }
  }
  add(block, filled);
  rows_seen_ += rows.shape[0];
}

void GramTracker::add(const Panel& rows, std::size_t count) {
  if (count == 0) return;
  for (std::size_t i = 0; i * kPanelAlign < dim_; ++i) {
    detail::dense_kernels().add_outer(gram_.as<double>() + strip_offset(i), strip_stride(i),
                                      rows.row(0) + i * kPanelAlign, rows.stride(), rows.row(0),
                                      rows.stride(), kPanelAlign, strip_stride(i), count);
  }
}

void GramTracker::rescale() {
  for (std::size_t i = 0; i < gram_values(); ++i) gram_.as<double>()[i] *= scale_;
  for (std::size_t j = 0; j < dim_ && options_.centred; ++j) sum_.as<double>()[j] *= scale_;
  weight_ *= scale_;
  energy_ *= scale_;
  scale_ = 1.0;
}

std::vector<double> GramTracker::mean() const {
  std::vector<double> mean(dim_);
  if (!options_.centred || !(weight_ > 0.0)) return mean;
  for (std::size_t j = 0; j < dim_; ++j) mean[j] = sum_.as<double>()[j] / weight_;
  return mean;
}

MatrixD GramTracker::gram() const {
  MatrixD G(dim_, dim_);
  const std::vector<double> centre = mean();
  for (std::size_t i = 0; i < dim_; ++i) {
    const std::size_t strip = i / kPanelAlign;
    const double* row =
        gram_.as<double>() + strip_offset(strip) + (i % kPanelAlign) * strip_stride(strip);
    for (std::size_t j = 0; j <= i; ++j) {
      G(i, j) = G(j, i) = scale_ * (row[j] - weight_ * centre[i] * centre[j]);
    }
  }
  return G;
}

std::vector<double> GramTracker::spectrum() const {
  std::vector<double> squared = symmetric_eigen(gram().view()).value().values;
  for (double& value : squared) value = std::max(value, 0.0);
  return squared;
}

Basis GramTracker::basis(std::size_t r) const {
  KVSPAN_EXPECT(r <= dim_, "no more directions than dimensions");
  SymmetricEigen eigen = symmetric_eigen(gram().view()).value();
  // What centring leaves of nothing is noise of the uncentred sums.
  const double noise = 16.0 * static_cast<double>(dim_) * 0x1p-52 * energy();
  MatrixD scaled(r, dim_);
  for (std::size_t i = 0; i < r; ++i) {
    if (eigen.values[i] <= noise) eigen.values[i] = 0.0;
    const double sigma = std::sqrt(eigen.values[i]);
    for (std::size_t j = 0; j < dim_; ++j) scaled(i, j) = sigma * eigen.vectors(i, j);
  }
  return detail::basis_from(scaled, eigen.values, r);
}

SubspaceCertificate GramTracker::certificate(std::size_t r) const {
  KVSPAN_EXPECT(r <= dim_, "no more directions than dimensions");
  // Sums of rows_seen terms, each rounded, and centring.
  const double drift = (static_cast<double>(rows_seen_) + 100.0) * 0x1p-52 * energy();
  return detail::certify(spectrum(), 0.0, drift, r, dim_);
}

std::unique_ptr<Tracker> GramTracker::clone(std::shared_ptr<Ledger> ledger) const {
  std::unique_ptr<GramTracker> copy(new GramTracker(dim_, options_, nullptr));
  copy->gram_ = gram_.clone(ledger);
  if (options_.centred) copy->sum_ = sum_.clone(ledger);
  copy->scale_ = scale_;
  copy->weight_ = weight_;
  copy->energy_ = energy_;
  copy->rows_seen_ = rows_seen_;
  return copy;
}

Status GramTracker::absorb_tracker(const Tracker& other) {
  const auto& gram = static_cast<const GramTracker&>(other);
  if (!(options_ == gram.options_)) {
    return fail(ErrorCode::kInvalidArgument,
                "merge: decay {} and centred {} differ from decay {} and centred {}",
                gram.options_.decay, gram.options_.centred, options_.decay, options_.centred);
  }
  rescale();
  for (std::size_t i = 0; i < gram_values(); ++i) {
    gram_.as<double>()[i] += gram.scale_ * gram.gram_.as<double>()[i];
  }
  for (std::size_t j = 0; j < dim_ && options_.centred; ++j) {
    sum_.as<double>()[j] += gram.scale_ * gram.sum_.as<double>()[j];
  }
  weight_ += gram.weight();
  energy_ += gram.energy();
  rows_seen_ += gram.rows_seen_;
  return {};
}

void GramTracker::write_payload(ByteWriter& out) const {
  out.put(static_cast<std::uint32_t>(dim_));
  out.put(static_cast<std::uint32_t>(options_.centred));
  out.put(options_.decay);
  out.put(rows_seen_);
  out.put(scale_);
  out.put(weight_);
  out.put(energy_);
  out.put_all(std::span<const double>(gram_.as<double>(), gram_values()));
  if (options_.centred) out.put_all(std::span<const double>(sum_.as<double>(), dim_));
}

Result<std::unique_ptr<Tracker>> GramTracker::read_payload(ByteReader& in,
                                                           std::shared_ptr<Ledger> ledger) {
  GramOptions options;
  KVSPAN_TRY(const auto dim, in.get<std::uint32_t>("dimension"));
  KVSPAN_TRY(const auto centred, in.get<std::uint32_t>("centred"));
  if (centred > 1) return in.wrong("centred", 4, centred, "0 or 1");
  options.centred = centred == 1;
  KVSPAN_TRY(options.decay, in.get<double>("decay"));
  if (const Status status = check_options(dim, options); !status) {
    return Error{ErrorCode::kCorruptData, "tracker: bytes 24 to 40: " + status.error().message};
  }
  KVSPAN_TRY(const auto rows_seen, in.get<std::uint64_t>("rows seen"));
  KVSPAN_TRY(const auto scale, in.get<double>("scale"));
  if (!(scale >= kSmallestScale && scale <= 1.0)) return in.wrong("scale", 8, scale, "2^-60 to 1");
  double sums[2];
  KVSPAN_CHECK_OK(in.get_finite("weight and energy", std::span<double>(sums), 1e300));
  if (sums[0] < 0.0 || sums[1] < 0.0) {
    return in.wrong("weight or energy", 16, std::min(sums[0], sums[1]), "0 or more");
  }
  const std::size_t strips = detail::padded(dim) / kPanelAlign;
  KVSPAN_CHECK_OK(in.expect_left(
      "gram", (strip_offset(strips) + (options.centred ? dim : 0)) * sizeof(double)));
  std::unique_ptr<GramTracker> tracker(new GramTracker(dim, options, std::move(ledger)));
  KVSPAN_CHECK_OK(in.get_finite(
      "gram", std::span<double>(tracker->gram_.as<double>(), tracker->gram_values()), 1e100));
  if (options.centred) {
    const std::span<double> sum(tracker->sum_.as<double>(), std::size_t{dim});
    KVSPAN_CHECK_OK(in.get_finite("sum", sum, 1e100));
    for (std::size_t j = 0; j < dim; ++j) {  // (sum w x)^2 <= (sum w) (sum w x^2)
      const std::size_t strip = j / kPanelAlign;
      const double square =
          tracker->gram_
              .as<double>()[strip_offset(strip) + j % kPanelAlign * strip_stride(strip) + j];
      if (sum[j] * sum[j] <= 1.000001 * sums[0] * square) continue;
      return in.wrong("sum", (dim - j) * sizeof(double), sum[j],
                      "what weight and gram leave room for");
    }
  }
  tracker->scale_ = scale;
  tracker->weight_ = sums[0];
  tracker->energy_ = sums[1];
  tracker->rows_seen_ = rows_seen;
  return std::unique_ptr<Tracker>(std::move(tracker));
}

}  // namespace kvspan
