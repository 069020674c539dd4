// SPDX-License-Identifier: Apache-2.0
#include "subspace/oja.h"

#include <algorithm>
#include <cmath>

#include "base/expect.h"
#include "base/fail.h"
#include "base/random.h"
#include "linalg/panel.h"
#include "linalg/qr.h"
#include "linalg/right_singular.h"
#include "linalg/subspaces.h"
#include "linalg/symmetric_eigen.h"
#include "base/byte_stream.h"
#include "subspace/squared_length.h"

namespace kvspan {
namespace {

using detail::Panel;

constexpr std::size_t kMaxBatchRows = 4096;

Status check_options(std::size_t dim, const OjaOptions& options) {
  KVSPAN_CHECK_OK(detail::check_dim(dim));
  if (options.rank < 1 || options.rank > dim) {
    return fail(ErrorCode::kInvalidArgument, "oja: rank {}; 1 to the dimension {} are allowed",
                options.rank, dim);
  }
  if (!(options.eta > 0.0) || !(options.eta <= 1e6)) {
    return fail(ErrorCode::kInvalidArgument, "oja: eta {}; above 0 and up to 1e6 is allowed",
                options.eta);
  }
  if (options.batch_rows > kMaxBatchRows) {
    return fail(ErrorCode::kInvalidArgument, "oja: {} batch rows; 0 to {} are allowed",
                options.batch_rows, kMaxBatchRows);
  }
  return {};
}

// What each row is multiplied with before it pulls, its weight left out.
std::vector<double> norm_factors(MatrixView rows, std::span<const float> weights, OjaNorm norm) {
  std::vector<double> factors(rows.shape[0], 1.0);
  if (norm == OjaNorm::kNone) return factors;
  double energy = 0.0, weight = 0.0;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const double squared = detail::squared_length(rows.row(i), rows.shape[1]);
    factors[i] = squared > 0.0 ? 1.0 / std::sqrt(squared) : 0.0;
    energy += weights[i] * squared;
    weight += weights[i];
  }
  if (norm == OjaNorm::kBatch) {
    std::fill(factors.begin(), factors.end(), energy > 0.0 ? std::sqrt(weight / energy) : 0.0);
  }
  return factors;
}

// T M T', M symmetric.
MatrixD turned(const Panel& T, const MatrixD& M) {
  const std::size_t r = M.rows();
  MatrixD half(r, r), whole(r, r);
  for (std::size_t i = 0; i < r; ++i) {
    for (std::size_t t = 0; t < r; ++t) {
      for (std::size_t j = 0; j < r; ++j) half(i, j) += T(i, t) * M(t, j);
    }
  }
  for (std::size_t i = 0; i < r; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = 0.0;
      for (std::size_t t = 0; t < r; ++t) sum += half(i, t) * T(j, t);
      whole(i, j) = whole(j, i) = sum;
    }
  }
  return whole;
}

}  // namespace

OjaTracker::OjaTracker(std::size_t dim, const OjaOptions& options, std::shared_ptr<Ledger> ledger)
    : dim_(dim),
      options_(options),
      basis_(options.rank * dim * sizeof(float), MemoryKind::kSketches, ledger),
      moments_(options.rank * options.rank * sizeof(double), MemoryKind::kSketches, ledger),
      rows_(options.batch_rows * dim * sizeof(float), MemoryKind::kSketches, ledger),
      weights_(options.batch_rows * sizeof(float), MemoryKind::kSketches, ledger) {}

Result<std::unique_ptr<OjaTracker>> OjaTracker::create(std::size_t dim, const OjaOptions& options,
                                                       std::optional<MatrixView> start,
                                                       std::shared_ptr<Ledger> ledger) {
  KVSPAN_CHECK_OK(check_options(dim, options));
  Matrix random_start;
  if (!start) {
    Random random(options.seed);
    random_start = Matrix(options.rank, dim);
    for (std::size_t i = 0; i < options.rank * dim; ++i) {
      random_start.data()[i] = static_cast<float>(random.normal());
    }
    start = random_start.view();
  }
  KVSPAN_EXPECT(start->shape[0] == options.rank && start->shape[1] == dim,
                "a start of rank rows and dim columns");
  KVSPAN_TRY(Matrix B, orthonormal_rows(*start));
  std::unique_ptr<OjaTracker> tracker(new OjaTracker(dim, options, std::move(ledger)));
  tracker->set_state({std::move(B), MatrixD(options.rank, options.rank)});
  return tracker;
}

void OjaTracker::set_eta(double eta) {
  KVSPAN_EXPECT(eta > 0.0 && eta <= 1e6, "eta above 0");
  options_.eta = eta;
}

OjaTracker::State OjaTracker::state() const {
  State state{Matrix(options_.rank, dim_), MatrixD(options_.rank, options_.rank)};
  std::copy(basis_.as<float>(), basis_.as<float>() + options_.rank * dim_, state.B.data());
  std::copy(moments_.as<double>(), moments_.as<double>() + options_.rank * options_.rank,
            state.M.data());
  return state;
}

void OjaTracker::set_state(const State& state) {
  std::copy(state.B.data(), state.B.data() + state.B.rows() * state.B.cols(), basis_.as<float>());
  std::copy(state.M.data(), state.M.data() + options_.rank * options_.rank, moments_.as<double>());
}

OjaTracker::State OjaTracker::flushed() const {
  return gathered_ == 0 ? state() : stepped(state(), pending(), pending_weights());
}

void OjaTracker::flush() {
  if (gathered_ == 0) return;
  set_state(flushed());
  gathered_ = 0;
}

void OjaTracker::absorb(MatrixView rows, std::span<const float> weights) {
  const std::size_t n = rows.shape[0];
  const std::vector<float> ones(weights.empty() ? n : 0, 1.0f);
  if (weights.empty()) weights = ones;
  for (std::size_t i = 0; i < n; ++i)
    energy_ += weights[i] * detail::squared_length(rows.row(i), dim_);
  rows_seen_ += n;
  if (options_.batch_rows == 0) {
    set_state(stepped(state(), rows, weights));
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    std::copy(rows.row(i), rows.row(i) + dim_, rows_.as<float>() + gathered_ * dim_);
    weights_.as<float>()[gathered_] = weights[i];
    if (++gathered_ == options_.batch_rows) flush();
  }
}

OjaTracker::State OjaTracker::stepped(const State& from, MatrixView rows,
                                      std::span<const float> weights) const {
  const std::size_t m = rows.shape[0], r = options_.rank;
  const std::vector<double> factors = norm_factors(rows, weights, options_.norm);
  Panel X(m, dim_), Xt(dim_, m), Y(m, r);
  for (std::size_t i = 0; i < m; ++i) {
    const double pull = factors[i] * std::sqrt(static_cast<double>(weights[i]));
    for (std::size_t j = 0; j < dim_; ++j) X(i, j) = Xt(j, i) = pull * rows.row(i)[j];
  }
  const Panel old = Panel::of(from.B.view());
  const Panel old_t = Panel::transposed(from.B.view());
  Y = detail::outer_product(Xt, old_t);                      // [m, r]
  const Panel pulled = detail::outer_product(Y, X);          // Y'X [r, d]
  const Panel overlap = detail::outer_product(Y, Y);         // Y'Y [r, r]
  const Panel within = detail::outer_product(overlap, old);  // (Y'Y) B
  MatrixD moved(r, dim_);
  for (std::size_t i = 0; i < r; ++i) {
    for (std::size_t j = 0; j < dim_; ++j) {
      moved(i, j) = old(i, j) + options_.eta * (pulled(i, j) - within(i, j));
    }
  }
  State to{orthonormal_rows(moved.view()).value(), from.M};
  for (std::size_t i = 0; i < m; ++i) {  // the moments are those of the rows themselves
    const double undo = factors[i] > 0.0 ? 1.0 / factors[i] : 0.0;
    for (std::size_t j = 0; j < r; ++j) Y(i, j) *= undo;
  }
  const Panel moments = detail::outer_product(Y, Y);
  for (std::size_t i = 0; i < r; ++i) {
    for (std::size_t j = 0; j < r; ++j) to.M(i, j) += moments(i, j);
  }
  const Panel turn = detail::outer_product(Panel::transposed(to.B.view()), old_t);
  to.M = turned(turn, to.M);
  return to;
}

Basis OjaTracker::basis(std::size_t r) const {
  KVSPAN_EXPECT(r <= options_.rank, "no more directions than the rank");
  State now = flushed();
  if (r == options_.rank) {
    Basis basis{std::move(now.B), std::vector<double>(r)};
    for (std::size_t i = 0; i < r; ++i) basis.squared[i] = std::max(now.M(i, i), 0.0);
    return basis;
  }
  const SymmetricEigen eigen = symmetric_eigen(now.M.view()).value();
  MatrixD rows(r, dim_);
  for (std::size_t i = 0; i < r; ++i) {
    for (std::size_t t = 0; t < options_.rank; ++t) {
      for (std::size_t j = 0; j < dim_; ++j) rows(i, j) += eigen.vectors(i, t) * now.B(t, j);
    }
  }
  Basis basis{orthonormal_rows(rows.view()).value(), std::vector<double>(r)};
  for (std::size_t i = 0; i < r; ++i) basis.squared[i] = std::max(eigen.values[i], 0.0);
  return basis;
}

std::vector<double> OjaTracker::spectrum() const {
  std::vector<double> squared = symmetric_eigen(flushed().M.view()).value().values;
  for (double& value : squared) value = std::max(value, 0.0);
  squared.resize(dim_, 0.0);
  return squared;
}

SubspaceCertificate OjaTracker::certificate(std::size_t r) const {
  KVSPAN_EXPECT(r <= options_.rank, "no more directions than the rank");
  return {0.0, energy_, 4e-6 * energy_};  // |I - B'B| <= 1 + 2 sqrt(r) 2^-24, squared; r <= 2048
}

std::size_t OjaTracker::bytes() const noexcept {
  return basis_.bytes() + moments_.bytes() + rows_.bytes() + weights_.bytes();
}

std::unique_ptr<Tracker> OjaTracker::clone(std::shared_ptr<Ledger> ledger) const {
  OjaOptions empty = options_;
  empty.batch_rows = 0;
  std::unique_ptr<OjaTracker> copy(new OjaTracker(dim_, empty, nullptr));
  copy->options_ = options_;
  copy->basis_ = basis_.clone(ledger);
  copy->moments_ = moments_.clone(ledger);
  copy->rows_ = rows_.clone(ledger);
  copy->weights_ = weights_.clone(ledger);
  copy->gathered_ = gathered_;
  copy->rows_seen_ = rows_seen_;
  copy->energy_ = energy_;
  return copy;
}

Status OjaTracker::absorb_tracker(const Tracker& other) {
  const auto& oja = static_cast<const OjaTracker&>(other);
  const std::size_t r = options_.rank;
  if (oja.options_.rank != r || oja.options_.norm != options_.norm ||
      oja.options_.batch_rows != options_.batch_rows) {
    return fail(ErrorCode::kInvalidArgument,
                "merge: rank {}, norm {}, batch {} differ from rank {}, norm {}, batch {}",
                oja.options_.rank, static_cast<int>(oja.options_.norm), oja.options_.batch_rows, r,
                static_cast<int>(options_.norm), options_.batch_rows);
  }
  // Rows whose Gram is B'MB of each, and the own basis once more, weakly, for directions in which
  // neither has seen anything.
  const State states[] = {flushed(), oja.flushed()};
  Matrix stack(3 * r, dim_);
  double strongest = 0.0;
  for (std::size_t s = 0; s < 2; ++s) {
    const SymmetricEigen eigen = symmetric_eigen(states[s].M.view()).value();
    for (std::size_t i = 0; i < r; ++i) {
      const double sigma = std::sqrt(std::max(eigen.values[i], 0.0));
      strongest = std::max(strongest, sigma);
      std::vector<double> row(dim_);
      for (std::size_t t = 0; t < r; ++t) {
        const double share = sigma * eigen.vectors(i, t);
        for (std::size_t j = 0; j < dim_; ++j) row[j] += share * states[s].B(t, j);
      }
      std::copy(row.begin(), row.end(), stack.row(s * r + i));
    }
  }
  const double weak = strongest > 0.0 ? 1e-5 * strongest : 1.0;
  for (std::size_t i = 0; i < r * dim_; ++i) {
    stack.row(2 * r)[i] = static_cast<float>(weak * states[0].B.data()[i]);
  }
  const RightSingular svd = right_singular(stack.view(), r);
  Basis basis = detail::basis_from(svd.scaled, svd.squared, r);
  State merged{std::move(basis.rows), MatrixD(r, r)};
  for (std::size_t i = 0; i < r && strongest > 0.0; ++i) merged.M(i, i) = basis.squared[i];
  set_state(merged);
  gathered_ = 0;
  rows_seen_ += oja.rows_seen_;
  energy_ += oja.energy_;
  return {};
}

void OjaTracker::write_payload(ByteWriter& out) const {
  const std::size_t r = options_.rank;
  out.put(static_cast<std::uint32_t>(dim_));
  out.put(static_cast<std::uint32_t>(r));
  out.put(static_cast<std::uint32_t>(options_.norm));
  out.put(static_cast<std::uint32_t>(options_.batch_rows));
  out.put(options_.eta);
  out.put(options_.seed);
  out.put(static_cast<std::uint64_t>(gathered_));
  out.put(rows_seen_);
  out.put(energy_);
  out.put_all(std::span<const float>(basis_.as<float>(), r * dim_));
  out.put_all(std::span<const double>(moments_.as<double>(), r * r));
  out.put_all(std::span<const float>(rows_.as<float>(), gathered_ * dim_));
  out.put_all(std::span<const float>(weights_.as<float>(), gathered_));
}

Result<std::unique_ptr<Tracker>> OjaTracker::read_payload(ByteReader& in,
                                                          std::shared_ptr<Ledger> ledger) {
  OjaOptions options;
  KVSPAN_TRY(const auto dim, in.get<std::uint32_t>("dimension"));
  KVSPAN_TRY(options.rank, in.get<std::uint32_t>("rank"));
  KVSPAN_TRY(const auto norm, in.get<std::uint32_t>("norm"));
  if (norm > 2) return in.wrong("norm", 4, norm, "0 (none), 1 (token), 2 (batch)");
  options.norm = static_cast<OjaNorm>(norm);
  KVSPAN_TRY(options.batch_rows, in.get<std::uint32_t>("batch rows"));
  KVSPAN_TRY(options.eta, in.get<double>("eta"));
  if (const Status status = check_options(dim, options); !status) {
    return Error{ErrorCode::kCorruptData, "tracker: bytes 24 to 48: " + status.error().message};
  }
  KVSPAN_TRY(options.seed, in.get<std::uint64_t>("seed"));
  KVSPAN_TRY(const auto gathered, in.get<std::uint64_t>("gathered rows"));
  if (gathered != 0 && gathered >= options.batch_rows) {
    return in.wrong("gathered rows", 8, gathered, "less than the batch rows");
  }
  KVSPAN_TRY(const auto rows_seen, in.get<std::uint64_t>("rows seen"));
  double energy = 0.0;
  KVSPAN_CHECK_OK(in.get_finite("energy", std::span<double>(&energy, 1), 1e300));
  if (energy < 0.0) return in.wrong("energy", 8, energy, "0 or more");
  const std::size_t r = options.rank;
  KVSPAN_CHECK_OK(in.expect_left(
      "basis, moments and gathered rows",
      r * dim * sizeof(float) + r * r * sizeof(double) + gathered * (dim + 1) * sizeof(float)));
  State state{Matrix(r, dim), MatrixD(r, r)};
  KVSPAN_CHECK_OK(in.get_finite("basis", std::span<float>(state.B.data(), r * dim), 2.0f));
  if (const double defect = orthonormality_defect(state.B.view()); defect > 1e-3) {
    return in.wrong("basis", r * dim * sizeof(float), defect, "rows orthonormal to 1e-3");
  }
  // The energy of any stream stays below this, and the root of it within f32.
  KVSPAN_CHECK_OK(in.get_finite("moments", std::span<double>(state.M.data(), r * r), 1e74));
  std::unique_ptr<OjaTracker> tracker(new OjaTracker(dim, options, std::move(ledger)));
  const std::size_t at = in.offset();
  KVSPAN_CHECK_OK(
      in.get_all("gathered rows", std::span<float>(tracker->rows_.as<float>(), gathered * dim)));
  KVSPAN_CHECK_OK(in.get_all("weights", std::span<float>(tracker->weights_.as<float>(), gathered)));
  tracker->gathered_ = gathered;
  if (const Status status = detail::check_rows(tracker->pending(), tracker->pending_weights());
      !status) {
    return fail(ErrorCode::kCorruptData, "tracker: gathered rows at byte {}: {}", at,
                status.error().message);
  }
  tracker->set_state(state);
  tracker->rows_seen_ = rows_seen;
  tracker->energy_ = energy;
  return std::unique_ptr<Tracker>(std::move(tracker));
}

}  // namespace kvspan
