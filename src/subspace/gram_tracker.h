// SPDX-License-Identifier: Apache-2.0
// The exact Gram of a stream, A'A in f64: batch PCA, and with a decay below 1 a PCA that forgets.
// Promise: what is held is sum_t decay^(T-t) w_t x_t x_t' up to rounding of f64; nothing is lost,
// so the certificate is the next eigenvalue. With `centred`, rows count relative to their
// (weighted, decayed) mean. Centring subtracts at the end: where the mean is m times the spread, it
// costs m^2 of the 2^53 that f64 resolves. Cost: d (d + 8) flops per row; 4 d (d + 8) bytes. A
// basis costs one eigenproblem of size d.
#pragma once

#include "subspace/tracker.h"

namespace kvspan {

namespace detail {
class Panel;
}

struct GramOptions {
  double decay = 1.0;  // what each new row leaves of those before it: 0.001 .. 1
  bool centred = false;
  bool operator==(const GramOptions&) const = default;
};

class GramTracker final : public Tracker {
 public:
  static Result<std::unique_ptr<GramTracker>> create(std::size_t dim, const GramOptions& options,
                                                     std::shared_ptr<Ledger> ledger);
  static Result<std::unique_ptr<Tracker>> read_payload(class ByteReader& in,
                                                       std::shared_ptr<Ledger> ledger);

  const GramOptions& options() const noexcept { return options_; }
  // [d, d], centred if asked for.
  MatrixD gram() const;
  // Sum of weights (decayed).
  double weight() const noexcept;
  // [d]; zeros unless centred.
  std::vector<double> mean() const;

  TrackerKind kind() const noexcept override { return TrackerKind::kGram; }
  std::size_t dim() const noexcept override { return dim_; }
  std::uint64_t rows_seen() const noexcept override { return rows_seen_; }
  // About the origin, also where centred.
  double energy() const noexcept override;
  Basis basis(std::size_t r) const override;
  SubspaceCertificate certificate(std::size_t r) const override;
  std::vector<double> spectrum() const override;
  std::size_t bytes() const noexcept override { return gram_.bytes() + sum_.bytes(); }
  std::unique_ptr<Tracker> clone(std::shared_ptr<Ledger> ledger) const override;

 protected:
  void absorb(MatrixView rows, std::span<const float> weights) override;
  // Both streams end now: decayed sums add up.
  Status absorb_tracker(const Tracker& other) override;
  void write_payload(ByteWriter& out) const override;

 private:
  GramTracker(std::size_t dim, const GramOptions& options, std::shared_ptr<Ledger> ledger);
  void add(const detail::Panel& rows, std::size_t count);
  void rescale();
  std::size_t gram_values() const noexcept;

  std::size_t dim_;
  GramOptions options_;
  // Everything held is multiplied by scale_ when read, so that decay need not touch the whole Gram
  // for every row: new rows enter divided by it.
  double scale_ = 1.0;
  Buffer gram_;  // f64, strips of 8 rows: strip i holds columns 0 .. 8i + 7
  Buffer sum_;   // [d] f64, where centred
  double weight_ = 0.0;
  double energy_ = 0.0;
  std::uint64_t rows_seen_ = 0;
};

}  // namespace kvspan
