// SPDX-License-Identifier: Apache-2.0
// Learning the directions of a stream of d-vectors: one interface for every tracker.
//
// A tracker sees the rows of a matrix A [rows, d] once, in order, and can be asked at any time for
// an orthonormal basis of the leading directions and for a bound on what that basis leaves out. A
// row x of weight w counts as sqrt(w) x. Every question takes into account every row seen, also
// those still waiting in a buffer.
//
// Trackers: frequent_directions.h (bounded memory, certified), oja.h (follows drift),
// gram_tracker.h (exact; batch PCA, decayed). One writer at a time; const members may run beside
// each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "kvspan/result.h"
#include "linalg/matrix.h"

namespace kvspan {

// Numbers end up in files: never give one a second meaning.
enum class TrackerKind : std::uint32_t { kFrequentDirections = 1, kOja = 2, kGram = 3 };
std::string_view name_of(TrackerKind kind) noexcept;

inline constexpr std::size_t kMaxTrackerDim = 2048;
// Entries sqrt(w) x beyond this are refused, so that no sum over a stream can overflow f32.
inline constexpr float kLargestTrackedEntry = 1e30f;

struct Basis {
  Matrix rows;  // [r, d], orthonormal
  // [r], squared singular values that the tracker ascribes to the rows, descending; 0 for a row
  // that was filled in because fewer than r directions have been seen.
  std::vector<double> squared;
};

// |A (I - P)|_op^2 <= bound(), P the projection onto basis(r) as returned, rounding included.
struct SubspaceCertificate {
  double sigma_next_squared = 0.0;  // s_{r+1}(S)^2 of what the tracker holds
  double delta = 0.0;               // what it may have lost
  double rounding = 0.0;            // what arithmetic in f32 and f64 may have added
  double bound() const noexcept { return sigma_next_squared + delta + rounding; }
};

class Tracker {
 public:
  virtual ~Tracker() = default;

  virtual TrackerKind kind() const noexcept = 0;
  virtual std::size_t dim() const noexcept = 0;
  // Rows given to update, of weight 0 as well.
  virtual std::uint64_t rows_seen() const noexcept = 0;
  // |A|_F^2, the sum of w |x|^2 (decayed where the tracker decays).
  virtual double energy() const noexcept = 0;

  // rows: [n, d]; weights: [n], finite and not negative, or empty for all 1. Splitting the rows
  // over several calls changes nothing. Fails, naming row and column and leaving the tracker as it
  // was, on entries that are not finite or too large.
  Status update(MatrixView rows, std::span<const float> weights = {});
  // Afterwards this tracker stands for the rows of both. Fails, naming what differs, unless the
  // other is of the same kind with the same options.
  Status merge(const Tracker& other);

  // The leading r directions, r <= max_rank().
  virtual Basis basis(std::size_t r) const = 0;
  virtual SubspaceCertificate certificate(std::size_t r) const = 0;
  // [d], squared singular values of all that is held, descending, padded with 0.
  virtual std::vector<double> spectrum() const = 0;
  virtual std::size_t max_rank() const noexcept { return dim(); }

  // Bytes allocated while learning, as on the ledger (MemoryKind::kSketches).
  virtual std::size_t bytes() const noexcept = 0;
  // An equal tracker on a ledger of its own; costs bytes().
  virtual std::unique_ptr<Tracker> clone(std::shared_ptr<Ledger> ledger) const = 0;
  // docs/reference/formats/tracker.md. load_tracker gives an equal tracker back: same bits, same
  // future.
  std::vector<std::byte> save() const;

 protected:
  virtual void absorb(MatrixView rows, std::span<const float> weights) = 0;
  // `other` is another object of the same kind and dim.
  virtual Status absorb_tracker(const Tracker& other) = 0;
  virtual void write_payload(class ByteWriter& out) const = 0;
};

// Fails on truncated, damaged or foreign bytes, saying what is wrong and at which byte. Allocates
// no more than a small multiple of bytes.size(), or 40 MB.
Result<std::unique_ptr<Tracker>> load_tracker(std::span<const std::byte> bytes,
                                              std::shared_ptr<Ledger> ledger);

namespace detail {

// Error unless 1 <= dim <= kMaxTrackerDim.
Status check_dim(std::size_t dim);
// What update demands of rows and weights.
Status check_rows(MatrixView rows, std::span<const float> weights);

// A certificate for a sketch S whose Gram differs from A'A by at most [-drift, delta + drift], and
// whose squared singular values are `squared` (descending).
SubspaceCertificate certify(std::span<const double> squared, double delta, double drift,
                            std::size_t r, std::size_t dim);

// Orthonormal rows [r, d] in f32 from scaled directions sigma_i v_i [count, d], completed where
// sigma_i is 0 or missing.
Basis basis_from(const MatrixD& scaled, std::span<const double> squared, std::size_t r);

}  // namespace detail
}  // namespace kvspan
