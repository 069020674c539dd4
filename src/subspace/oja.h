// SPDX-License-Identifier: Apache-2.0
// Oja's rule in batches: the basis B [r, d] turns towards each batch X [m, d] of rows,
//     B <- orthonormal rows of  B + eta (Y'X - (Y'Y) B),   Y = XB',
// and so follows a distribution that drifts. One batch gives one step and one QR.
//
// The step is the sum over the batch, as OjaKV's Algorithm 1 writes it. What X is decides whether
// eta means the same for small and large activations:
//     none    X = the rows themselves. eta is in units of 1 / (activation squared).
//     token   each row divided by its own length (rows of 0 drop out): every token pulls alike, and
//             eta is the pull of one token. Scaling any row changes nothing.
//     batch   all rows divided by their root mean square length sqrt(sum w|x|^2 / sum w): loud
//     tokens
//             pull more than quiet ones, and scaling the whole batch changes nothing.
// A weight w multiplies a row's pull. A step turns the basis by tan(angle) = eta |(I-P) X'X B'|:
// eta times the batch's energy in a direction should stay below about 1.
//
// Promise: rows of B are orthonormal to f32 rounding after any number of steps. Nothing is proven
// about how much of A lies within B: the certificate is |A|_F^2.
// Cost: 4 m r d flops per batch and 4 r^2 d for QR. 4 r d + 8 r^2 + 4 batch_rows (d + 1) bytes.
// Source: Oja 1982; Zhu et al. (OjaKV), Algorithm 1. The moments M are kvspan's addition.
#pragma once

#include <cstdint>
#include <optional>

#include "subspace/tracker.h"

namespace kvspan {

enum class OjaNorm : std::uint32_t { kNone = 0, kToken = 1, kBatch = 2 };

struct OjaOptions {
  std::size_t rank = 16;  // 1 .. d
  double eta = 0.05;      // above 0
  OjaNorm norm = OjaNorm::kBatch;
  // Rows of a batch, up to 4096: these are gathered first, and splitting them over calls changes
  // nothing. 0:
  // each call of update is one batch, whatever its length.
  std::size_t batch_rows = 32;
  std::uint64_t seed = 1;  // of the random start where none is given
};

class OjaTracker final : public Tracker {
 public:
  // start: [rank, d], any rows of full rank (they are orthonormalised), such as a calibrated basis.
  static Result<std::unique_ptr<OjaTracker>> create(std::size_t dim, const OjaOptions& options,
                                                    std::optional<MatrixView> start,
                                                    std::shared_ptr<Ledger> ledger);
  static Result<std::unique_ptr<Tracker>> read_payload(class ByteReader& in,
                                                       std::shared_ptr<Ledger> ledger);

  const OjaOptions& options() const noexcept { return options_; }
  // For steps from now on (prefill and decode differ). eta > 0.
  void set_eta(double eta);
  // Makes a step with the rows gathered so far, if any.
  void flush();

  TrackerKind kind() const noexcept override { return TrackerKind::kOja; }
  std::size_t dim() const noexcept override { return dim_; }
  std::size_t max_rank() const noexcept override { return options_.rank; }
  std::uint64_t rows_seen() const noexcept override { return rows_seen_; }
  double energy() const noexcept override { return energy_; }
  // Rows still gathered count as if flush() had been called. basis(rank) is B as the steps left it:
  // row i continues row i of the step before, so that coefficients of old rows stay meaningful.
  // Fewer are the leading directions within B by the moments M.
  Basis basis(std::size_t r) const override;
  SubspaceCertificate certificate(std::size_t r) const override;
  std::vector<double> spectrum() const override;
  std::size_t bytes() const noexcept override;
  std::unique_ptr<Tracker> clone(std::shared_ptr<Ledger> ledger) const override;

 protected:
  void absorb(MatrixView rows, std::span<const float> weights) override;
  // The leading directions of what both have seen within their bases, by energy; both flushed.
  Status absorb_tracker(const Tracker& other) override;
  void write_payload(ByteWriter& out) const override;

 private:
  struct State {
    Matrix B;  // [rank, d]
    // [rank, rank], sum of y y' over all rows, mapped to each new basis by B_new B_old': what the
    // basis turns away from is lost sight of, so M falls short of the truth.
    MatrixD M;
  };
  OjaTracker(std::size_t dim, const OjaOptions& options, std::shared_ptr<Ledger> ledger);
  State state() const;
  State flushed() const;
  void set_state(const State& state);
  State stepped(const State& from, MatrixView rows, std::span<const float> weights) const;
  MatrixView pending() const noexcept { return {rows_.as<float>(), {gathered_, dim_}}; }
  std::span<const float> pending_weights() const noexcept {
    return {weights_.as<float>(), gathered_};
  }

  std::size_t dim_;
  OjaOptions options_;
  Buffer basis_;    // [rank, d] f32
  Buffer moments_;  // [rank, rank] f64
  Buffer rows_;     // [batch_rows, d] f32
  Buffer weights_;  // [batch_rows] f32
  std::size_t gathered_ = 0;
  std::uint64_t rows_seen_ = 0;
  double energy_ = 0.0;
};

}  // namespace kvspan
