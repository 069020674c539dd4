// SPDX-License-Identifier: Apache-2.0
#include "store/open_store.h"

#include <optional>
#include <string>

#include "base/fail.h"
#include "recipe/value.h"
#include "store/disk_blobs.h"
#include "store/memory_blobs.h"
#include "store/redis_blobs.h"

namespace kvspan {
namespace {

constexpr std::uint64_t kLeastBytes = 1 << 20;

std::optional<std::uint64_t> size_of(std::string_view text) {
  const std::optional<Value> value = read_value(ValueKind::kBytes, text);
  if (!value) return std::nullopt;
  return std::get<ByteCount>(*value).bytes;
}

Error wrong_size(std::string_view text) {
  return fail(ErrorCode::kInvalidArgument,
              "the size of a store is '{}'; allowed: 1MiB or more, as 512MiB or 20GB", text);
}

}  // namespace

Result<std::unique_ptr<Blobs>> open_blobs(std::string_view place, std::int64_t ttl_seconds) {
  if (ttl_seconds < 1) {
    return fail(ErrorCode::kInvalidArgument,
                "entries of a store live {} seconds; allowed: 1 or more", ttl_seconds);
  }
  const std::string_view kind = place.substr(0, place.find(':'));
  std::string_view rest = place.substr(std::min(place.size(), kind.size() + 1));
  if (kind == "memory") {
    const auto bytes = size_of(rest);
    if (!bytes || *bytes < kLeastBytes) return wrong_size(rest);
    return std::unique_ptr<Blobs>(std::make_unique<MemoryBlobs>(*bytes));
  }
  if (kind == "disk") {
    std::uint64_t limit = kDiskStoreBytes;
    // What follows the last colon is a size, unless it has a slash: then it is a part of the folder.
    const std::size_t colon = rest.rfind(':');
    if (colon != std::string_view::npos && rest.find('/', colon) == std::string_view::npos) {
      const std::string_view text = rest.substr(colon + 1);
      const auto bytes = size_of(text);
      if (!bytes || *bytes < kLeastBytes) return wrong_size(text);
      limit = *bytes;
      rest = rest.substr(0, colon);
    }
    if (rest.empty()) {
      return fail(ErrorCode::kInvalidArgument, "'{}' names no folder; allowed: disk:FOLDER[:SIZE]",
                  place);
    }
    KVSPAN_TRY(auto blobs, DiskBlobs::open(std::string(rest), limit));
    return std::unique_ptr<Blobs>(std::move(blobs));
  }
  if (kind == "redis") {
    KVSPAN_TRY(const RedisAddress address, RedisAddress::parse(place));
    return std::unique_ptr<Blobs>(std::make_unique<RedisBlobs>(address, ttl_seconds));
  }
  return fail(ErrorCode::kInvalidArgument,
              "'{}' is no kind of store; allowed: memory:SIZE, disk:FOLDER[:SIZE], "
              "redis://[user:password@]host[:port][/database]",
              kind);
}

}  // namespace kvspan
