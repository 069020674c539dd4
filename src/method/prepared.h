// SPDX-License-Identifier: Apache-2.0
// A recipe made ready for a model: how each layer's heads are grouped, and what makes the policy
// and the selector of each group. Immutable; shared by all sequences, as are the codes it holds.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "kvspan/cache.h"
#include "kvspan/calibration.h"
#include "kvspan/result.h"
#include "method/designs.h"
#include "method/group.h"
#include "method/policies/policy.h"
#include "method/selectors/selector.h"
#include "recipe/recipe.h"

namespace kvspan {

// As many queries as a call has.
inline constexpr std::int32_t kAllQueries = std::numeric_limits<std::int32_t>::max();

struct PreparedGroup {
  GroupOptions options;
  // Null: rows stay as they came.
  std::function<std::unique_ptr<Policy>(const std::shared_ptr<Ledger>&)> make_policy;
  std::function<std::unique_ptr<Selector>(const std::shared_ptr<Ledger>&)> make_selector;
  // A store that the group has from the beginning beside its list; null: none.
  std::function<std::unique_ptr<TokenStore>(const std::shared_ptr<Ledger>&)> make_store;
  // Those that its policy starts from and other sequences share; saved caches name them only.
  std::vector<std::shared_ptr<const Code>> codes = {};
  // Last queries of a call whose attention the policy wants; 0: none.
  std::int32_t observed_queries = 0;
};

struct PreparedLayer {
  std::vector<PreparedGroup> groups;  // together all KV heads, in order
  bool reconstruct = false;           // rebuild rows before attending (static:read=reconstruct)
  // So many layers right before this one are coded together with it: their groups are led by those of this layer.
  std::size_t layers_led = 0;
};

struct Prepared {
  CacheShape shape;
  std::string recipe;              // canonical; what auto chose
  std::string asked;               // canonical, as it was given
  std::shared_ptr<Ledger> shared;  // of the codes that sequences share
  std::vector<PreparedLayer> layers;
  DesignNotes designs;                     // in the order in which `prepare` asks for them
  std::uint64_t calibration_checksum = 0;  // of what they were designed from; 0: not known
};

// Fails on a recipe that does not fit the shape (a rank beyond the head dimension, say), that needs
// a calibration where none is given, or a calibration that does not fit.
Result<std::shared_ptr<const Prepared>> prepare(const CacheShape& shape, const Recipe& recipe,
                                                const Calibration* calibration,
                                                const DesignProgress& progress = nullptr);

// The designs of a recipe as bytes, and the recipe made ready with them, without the calibration:
// docs/reference/formats/codes.md.
Result<std::vector<std::byte>> save_designs(const Prepared& prepared);
Result<std::shared_ptr<const Prepared>> prepare_saved(const CacheShape& shape, const Recipe& recipe,
                                                      std::span<const std::byte> designs);

// The recipe cannot be made without a calibration of the model.
bool needs_calibration(const Recipe& recipe);

}  // namespace kvspan
