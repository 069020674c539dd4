// SPDX-License-Identifier: Apache-2.0
#include "store/redis_blobs.h"

#include "base/fail.h"

namespace kvspan {
namespace {

std::vector<std::string> names(std::span<const std::string> keys) {
  std::vector<std::string> all;
  for (const std::string& key : keys) all.push_back("kvspan:" + key);
  return all;
}

Error odd_reply(const std::string& address) {
  return fail(ErrorCode::kCorruptData, "{} answers a question with something else", address);
}

}  // namespace

RedisBlobs::RedisBlobs(const RedisAddress& address, std::int64_t ttl_seconds,
                       const RedisLimits& limits)
    : address_(address.text()),
      ttl_(std::to_string(ttl_seconds)),
      reading_{{}, RedisLink(address, limits)},
      writing_{{}, RedisLink(address, limits)} {}

std::string RedisBlobs::describe() const {
  return fmt::format("{}, kept {} s after the last use", address_, ttl_);
}

Result<std::vector<RedisReply>> RedisBlobs::call(Line& line,
                                                 std::span<const RedisCommand> commands,
                                                 std::size_t most_bytes) {
  const std::lock_guard lock(line.mutex);
  return line.link.call(commands, most_bytes);
}

Result<std::vector<std::optional<std::vector<std::byte>>>> RedisBlobs::get(
    std::span<const std::string> keys, std::size_t most_bytes) {
  const std::vector<std::string> all = names(keys);
  const std::string last = std::to_string(most_bytes);
  std::vector<RedisCommand> commands;
  for (const std::string& name : all) {
    commands.push_back({"EXPIRE", name, ttl_});
    commands.push_back({"GETRANGE", name, "0", last});
  }
  KVSPAN_TRY(auto replies, call(reading_, commands, most_bytes + 1));
  std::vector<std::optional<std::vector<std::byte>>> found;
  for (std::size_t i = 0; i < replies.size(); i += 2) {
    RedisReply& bytes = replies[i + 1];
    if (replies[i].kind != RedisReply::Kind::kNumber || bytes.kind != RedisReply::Kind::kBytes) {
      return odd_reply(address_);
    }
    const bool there = replies[i].number == 1;
    found.emplace_back(there ? std::optional(std::move(bytes.bytes)) : std::nullopt);
  }
  return found;
}

Result<std::vector<bool>> RedisBlobs::has(std::span<const std::string> keys) {
  const std::vector<std::string> all = names(keys);
  std::vector<RedisCommand> commands;
  for (const std::string& name : all) commands.push_back({"EXPIRE", name, ttl_});
  KVSPAN_TRY(const auto replies, call(writing_, commands));
  std::vector<bool> found;
  for (const RedisReply& reply : replies) {
    if (reply.kind != RedisReply::Kind::kNumber) return odd_reply(address_);
    found.push_back(reply.number == 1);
  }
  return found;
}

Status RedisBlobs::put(std::span<const BlobView> blobs) {
  std::vector<std::string> all;
  for (const BlobView& blob : blobs) all.push_back("kvspan:" + blob.key);
  std::vector<RedisCommand> commands;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < blobs.size(); ++i) {
    const std::string_view bytes(reinterpret_cast<const char*>(blobs[i].bytes.data()),
                                 blobs[i].bytes.size());
    commands.push_back({"SET", all[i], bytes, "EX", ttl_});
    sum += bytes.size();
  }
  KVSPAN_TRY(const auto replies, call(writing_, commands));
  written_ += sum;
  return {};
}

void RedisBlobs::remove(std::span<const std::string> keys) {
  const std::vector<std::string> all = names(keys);
  std::vector<RedisCommand> commands;
  for (const std::string& name : all) commands.push_back({"UNLINK", name});
  (void)call(writing_, commands);  // what stays is found damaged once more
}

}  // namespace kvspan
