// SPDX-License-Identifier: Apache-2.0
#include "eval/kept_codes.h"

#include "base/byte_stream.h"
#include "base/fail.h"
#include "base/memory.h"
#include "io/user_folders.h"
#include "recipe/recipe.h"

namespace kvspan {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;

// Of the canonical recipe.
Result<std::string> file_name(const std::string& fingerprint, const std::string& recipe) {
  KVSPAN_TRY(const Recipe parsed, Recipe::parse(recipe));
  const std::string text = parsed.text();
  return fmt::format("{}-{:016x}.codes", fingerprint, crc64(std::as_bytes(std::span(text))));
}

}  // namespace

Result<BoundedFolder> codes_folder() {
  KVSPAN_TRY(const std::string folder, user_cache_folder());
  return BoundedFolder(folder + "/codes", kMostBytes);
}

Result<KeptCodes> KeptCodes::find(const std::string& fingerprint, const CacheShape& shape,
                                  const std::string& recipe, std::uint64_t calibration) {
  KVSPAN_TRY(const BoundedFolder folder, codes_folder());
  KVSPAN_TRY(const std::string name, file_name(fingerprint, recipe));
  KeptCodes kept;
  const auto bytes = folder.read(name);
  if (!bytes) {
    if (bytes.error().code != ErrorCode::kNotFound) kept.problem_ = bytes.error().message;
    return kept;
  }
  auto caches = CacheFactory::load_codes(shape, recipe, *bytes);
  return_free_memory();  // reading left holes as large as the codes
  if (caches && caches->calibration_checksum() == calibration) {
    kept.caches_ = *std::move(caches);
  } else if (!caches && caches.error().code != ErrorCode::kUnsupported) {
    kept.problem_ = fmt::format("'{}': {}", folder.path_of(name), caches.error().message);
  }
  return kept;
}

Status KeptCodes::keep(const std::string& fingerprint, const std::string& recipe,
                       const CacheFactory& caches) {
  KVSPAN_TRY(const BoundedFolder folder, codes_folder());
  KVSPAN_TRY(const std::string name, file_name(fingerprint, recipe));
  KVSPAN_TRY(const auto bytes, caches.save_codes());
  return folder.write(name, bytes);
}

}  // namespace kvspan
