// SPDX-License-Identifier: Apache-2.0
// fd: Frequent Directions sketches follow keys and values; a new segment, with the sketches'
// leading directions as its basis, begins when a row no longer fits the current basis, or after
// `chunk` rows. Sources: documents 000 s5-s7, 001 s3.3 (SubSpace-A).
//
// Rows are looked at one after the other as they leave the recent end. A row is tested against the
// current bases: rho = |(I - P)x| / |x|, from norms alone (subspace/residual.h). Rows of a segment
// are stored in pieces of at most kPieceRows under the same code.
#pragma once

#include <cstdint>
#include <memory>

#include "base/memory.h"
#include "method/coding_plan.h"
#include "method/policies/policy.h"
#include "subspace/frequent_directions.h"

namespace kvspan {

struct FdOptions {
  std::int32_t sketch_per_rank = 2;
  std::int32_t chunk = 256;
  std::int32_t min_chunk = 64;  // so that outliers cannot cause a storm of segments
  double key_tau = 0.15;
  double value_tau = 0.15;
  bool shared = false;    // one sketch, of keys, sees keys and values
  std::int32_t warm = 0;  // at a switch, rebuild the sketches from this many last rows; 0: keep them
  std::int32_t lookahead = 0;  // rows that the sketches see before they are coded
  std::int32_t every = 1;      // sketches see one row in `every`
  double merge = 1.0;          // overlap from which the old basis is kept at a switch; 1: never
};

class FdPolicy final : public Policy {
 public:
  static constexpr std::size_t kPieceRows = 32;

  FdPolicy(std::shared_ptr<const CodingPlan> plan, const FdOptions& options,
           std::shared_ptr<Ledger> ledger);
  FdPolicy(const FdPolicy& other);

  Status settle(Group& group) override;
  void truncate(const Group& group, std::int32_t position) noexcept override;
  std::unique_ptr<Policy> clone() const override { return std::make_unique<FdPolicy>(*this); }
  std::size_t sketch_bytes() const noexcept override;
  void add_codes(std::vector<const Code*>& codes) const override;
  Status save(const StateWriter& to) const override;
  Status load(Group& group, const StateReader& from) override;

  // Segments begun, and what the sketches have lost: for tracking errors.
  std::int64_t segments() const noexcept { return segments_; }
  const FrequentDirections* keys() const noexcept { return key_side_.sketch.get(); }
  const FrequentDirections* values() const noexcept { return value_side_.sketch.get(); }

 private:
  struct Side {
    std::unique_ptr<FrequentDirections> sketch;  // null for values that share the keys'
    std::shared_ptr<const Code> code;            // of the current segment; null before the first
    Buffer ring;                                 // [ring_rows(), D], the last rows learnt
    std::size_t learnt = 0;  // rows in all; the next one goes to learnt % ring_rows()
  };
  // Rows that the last `warm` tokens gave to a sketch.
  std::size_t ring_rows() const noexcept {
    return static_cast<std::size_t>(options_.warm) * (options_.shared ? 2 : 1);
  }
  Side begin_side(const std::optional<SidePlan>& plan, bool sketches) const;
  Side clone_side(const Side& side) const;
  Status load_side(Side& side, const SidePlan& plan, const StateReader& from) const;
  Status learn_row(Side& side, const SidePlan& plan, const RowBlock& rows, std::size_t row);
  Status warm_up(Side& side);
  Result<std::shared_ptr<const Code>> next_code(const Side& side, const SidePlan& plan,
                                                const std::shared_ptr<Ledger>& ledger) const;
  Status learn(const RowBlock& rows, std::size_t row);
  bool fits(const RowBlock& rows, std::size_t row) const;
  Status begin_segment(Group& group);
  Status flush(Group& group, const RowBlock& rows, std::size_t end);
  bool ready() const noexcept;

  std::shared_ptr<const CodingPlan> plan_;
  FdOptions options_;
  std::shared_ptr<Ledger> ledger_;
  Side key_side_, value_side_;
  std::int64_t rows_seen_ = 0;     // by the sketches, skipped ones included
  std::int32_t looked_at_ = 0;     // waiting rows of the current segment, not stored yet
  std::int32_t learnt_ahead_ = 0;  // waiting rows that the sketches know
  std::int32_t length_ = 0;        // of the current segment, stored and not
  // The next row's key is in its sketch, its value not: memory ended between the two.
  bool key_learnt_ = false;
  std::int64_t segments_ = 0;
};

}  // namespace kvspan
