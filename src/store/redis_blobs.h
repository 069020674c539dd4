// SPDX-License-Identifier: Apache-2.0
// A store's entries in Redis, shared by servers on any number of machines. Redis forgets them by itself:
// after the time to live since their last use, and by its own limit (maxmemory with allkeys-lru).
// Reading and writing have a connection each, so that no prompt waits until another one is written.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "io/redis_link.h"
#include "store/blobs.h"

namespace kvspan {

class RedisBlobs final : public Blobs {
 public:
  RedisBlobs(const RedisAddress& address, std::int64_t ttl_seconds, const RedisLimits& limits = {});

  std::string describe() const override;
  Result<std::vector<std::optional<std::vector<std::byte>>>> get(
      std::span<const std::string> keys, std::size_t most_bytes) override;
  Result<std::vector<bool>> has(std::span<const std::string> keys) override;
  Status put(std::span<const BlobView> blobs) override;
  void remove(std::span<const std::string> keys) override;
  std::uint64_t bytes() const override { return written_; }  // written by this program

 private:
  struct Line {
    std::mutex mutex;
    RedisLink link;
  };
  Result<std::vector<RedisReply>> call(Line& line, std::span<const RedisCommand> commands,
                                       std::size_t most_bytes = RedisLink::kShortReply);

  const std::string address_, ttl_;
  Line reading_, writing_;
  std::atomic<std::uint64_t> written_ = 0;
};

}  // namespace kvspan
