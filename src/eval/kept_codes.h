// SPDX-License-Identifier: Apache-2.0
// Designed codes that are kept from one start of the program to the next: codes/ in the user's
// cache folder, a file for each model and recipe, at most 1 GiB in all
// (docs/reference/formats/codes.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/bounded_folder.h"
#include "kvspan/cache.h"
#include "kvspan/result.h"

namespace kvspan {

Result<BoundedFolder> codes_folder();

// Of one model and recipe.
class KeptCodes {
 public:
  // fingerprint: of the model; calibration: the checksum of the one that codes must come from.
  // recipe: as CacheFactory::create takes it.
  static Result<KeptCodes> find(const std::string& fingerprint, const CacheShape& shape,
                                const std::string& recipe, std::uint64_t calibration);

  // None where none are kept, or they are of another calibration or an earlier kvspan.
  const std::optional<CacheFactory>& caches() const noexcept { return caches_; }
  // What is wrong with a file that cannot be used, with its path; "" where nothing is.
  const std::string& problem() const noexcept { return problem_; }

  // Keeps codes in the place of this model and recipe.
  static Status keep(const std::string& fingerprint, const std::string& recipe,
                     const CacheFactory& caches);

 private:
  std::string problem_;
  std::optional<CacheFactory> caches_;
};

}  // namespace kvspan
