// SPDX-License-Identifier: Apache-2.0
// A connection to Redis that never takes longer than it may: commands go out in one piece, replies
// come back in order, all within one deadline. After a failure nothing is tried for a while, so that
// a server that is away costs its callers nothing. Uses hiredis. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvspan/result.h"

struct redisContext;

namespace kvspan {

// redis://[user[:password]@]host[:port][/database]; user, password may have %XX.
struct RedisAddress {
  std::string host;
  int port = 6379;
  int database = 0;
  std::string user, password;  // user empty: the default one

  static Result<RedisAddress> parse(std::string_view url);
  std::string text() const;  // for people: without the password
};

struct RedisReply {
  enum class Kind { kNothing, kBytes, kNumber } kind = Kind::kNothing;
  std::vector<std::byte> bytes;  // also of a status
  std::int64_t number = 0;
};

// The parts of a command: a name and its arguments.
using RedisCommand = std::vector<std::string_view>;

struct RedisLimits {
  int connect_ms = 500;
  int call_ms = 3000;  // of all commands of a call together, connecting left out
  int pause_ms = 2000;  // after a failure; twice as long after each further one, up to a minute
};

class RedisLink {
 public:
  static constexpr std::size_t kShortReply = 4096;  // of what is no entry

  explicit RedisLink(RedisAddress address, const RedisLimits& limits = {});
  ~RedisLink();

  // One reply for each command, of at most `most_bytes` bytes, arrays left out. A reply that begins
  // as a longer one or as an array is not read. kIo where the server is away, too slow or pausing;
  // kCorruptData where it answers with something else. An error that Redis itself reports for one of
  // the commands (no memory, no permission) fails the call as kOutOfBudget; the connection stays.
  Result<std::vector<RedisReply>> call(std::span<const RedisCommand> commands,
                                       std::size_t most_bytes = kShortReply);

 private:
  Status connect();
  Result<std::vector<RedisReply>> exchange(std::span<const RedisCommand> commands,
                                           std::size_t most_bytes);
  void failed();

  RedisAddress address_;
  RedisLimits limits_;
  std::unique_ptr<redisContext, void (*)(redisContext*)> context_;
  std::int64_t try_again_ms_ = 0;
  int pause_ms_ = 0;
};

}  // namespace kvspan
