// SPDX-License-Identifier: Apache-2.0
// Frequent Directions: a sketch S of at most 2l rows of a stream A.
// Promise: 0 <= A'A - S'S <= delta() I up to drift() (rounding of the sketch to f32), with
//     delta() <= |A - A_k|_F^2 / (l + 1 - k) for every k <= l, so that
//     |A (I - P_r)|_op^2 <= s_{r+1}(S)^2 + delta() + rounding: the certificate. No gap is needed.
// A shrink subtracts the square of singular value l+1 from all, which leaves l rows; it happens
// only when a row arrives and 2l are held, so rows not shrunk yet are part of S and lose nothing.
// Cost: O(d l) per row, amortised: every l rows one eigenproblem of size min(2l, d). 8 l d bytes.
// Source: Ghashami, Liberty, Phillips, Woodruff 2016; merging: the same, section 4.
#pragma once

#include "subspace/tracker.h"

namespace kvspan {

struct FrequentDirectionsOptions {
  std::size_t sketch_rows = 32;  // l, 1 .. d
  bool operator==(const FrequentDirectionsOptions&) const = default;
};

class FrequentDirections final : public Tracker {
 public:
  static Result<std::unique_ptr<FrequentDirections>> create(
      std::size_t dim, const FrequentDirectionsOptions& options, std::shared_ptr<Ledger> ledger);
  static Result<std::unique_ptr<Tracker>> read_payload(class ByteReader& in,
                                                       std::shared_ptr<Ledger> ledger);

  const FrequentDirectionsOptions& options() const noexcept { return options_; }
  // The sum of all shrink amounts.
  double delta() const noexcept { return delta_; }
  // How far rounding the sketch to f32 may have moved S'S in all, in the operator norm.
  double drift() const noexcept { return drift_; }
  // S: [held rows <= 2l, d].
  MatrixView sketch() const noexcept { return {buffer_.as<float>(), {held_, dim_}}; }

  // Forgets all rows; keeps the memory.
  void clear() noexcept;

  TrackerKind kind() const noexcept override { return TrackerKind::kFrequentDirections; }
  std::size_t dim() const noexcept override { return dim_; }
  std::uint64_t rows_seen() const noexcept override { return rows_seen_; }
  double energy() const noexcept override { return energy_; }
  Basis basis(std::size_t r) const override;
  SubspaceCertificate certificate(std::size_t r) const override;
  std::vector<double> spectrum() const override;
  std::size_t bytes() const noexcept override { return buffer_.bytes(); }
  std::unique_ptr<Tracker> clone(std::shared_ptr<Ledger> ledger) const override;

 protected:
  void absorb(MatrixView rows, std::span<const float> weights) override;
  Status absorb_tracker(const Tracker& other) override;
  void write_payload(ByteWriter& out) const override;

 private:
  FrequentDirections(std::size_t dim, const FrequentDirectionsOptions& options,
                     std::shared_ptr<Ledger> ledger);
  void append(const float* row, float factor);
  void shrink();

  std::size_t dim_;
  FrequentDirectionsOptions options_;
  Buffer buffer_;  // [2l, d] f32
  std::size_t held_ = 0;
  std::uint64_t rows_seen_ = 0;
  double energy_ = 0.0;
  double delta_ = 0.0;
  double drift_ = 0.0;
};

}  // namespace kvspan
