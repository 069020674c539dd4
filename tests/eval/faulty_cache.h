// SPDX-License-Identifier: Apache-2.0
// A full cache with a fault, for tests of what is meant to find it.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "api/wrapped_cache.h"
#include "base/fail.h"

namespace kvspan::testing {

class FaultyCache final : public WrappedCache {
 public:
  enum class Fault {
    kLosesAHead,
    kFailsLate,  // at position 300
    kNotFinite,
  };
  FaultyCache(std::unique_ptr<KvCache> inner, Fault fault)
      : WrappedCache(std::move(inner)), fault_(fault) {}
  FaultyCache(const CacheShape& shape, Fault fault)
      : FaultyCache(std::move(*make_cache(shape, "full")), fault) {}

  // "loses-a-head", "fails-late", "not-finite"; any other text is a recipe.
  static Result<std::unique_ptr<KvCache>> make(const CacheShape& shape, const std::string& name) {
    using enum Fault;
    for (const auto& [known, fault] : {std::pair{"loses-a-head", kLosesAHead},
                                       {"fails-late", kFailsLate},
                                       {"not-finite", kNotFinite}}) {
      if (name == known) return std::unique_ptr<KvCache>(new FaultyCache(shape, fault));
    }
    return make_cache(shape, name);
  }

  std::string recipe() const override { return "faulty"; }
  Result<std::unique_ptr<KvCache>> fork() const override {
    KVSPAN_TRY(auto inner, WrappedCache::fork());
    return std::unique_ptr<KvCache>(new FaultyCache(std::move(inner), fault_));
  }
  Status append(int layer, const KvRows& rows, Team& team) override {
    if (fault_ == Fault::kFailsLate && rows.positions.back() >= 300) {
      team.barrier();
      return fail(ErrorCode::kOutOfBudget, "no more room");
    }
    return WrappedCache::append(layer, rows, team);
  }
  Status attend(int layer, const Queries& queries, TensorView<float, 3> out,
                AttentionScratch& scratch, Team& team) override {
    if (Status status = WrappedCache::attend(layer, queries, out, scratch, team); !status)
      return status;
    if (team.leader() && fault_ != Fault::kFailsLate) {
      const float wrong =
          fault_ == Fault::kNotFinite ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
      for (std::size_t i = 0; i < out.shape[0]; ++i) {
        std::fill_n(out.row(i, 0), out.shape[2], wrong);
      }
    }
    team.barrier();
    return {};
  }

 private:
  Fault fault_;
};

}  // namespace kvspan::testing
