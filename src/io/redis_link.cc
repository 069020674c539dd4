// SPDX-License-Identifier: Apache-2.0
#include "io/redis_link.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/fail.h"

namespace kvspan {
namespace {

constexpr int kLongestPauseMs = 60'000;

std::int64_t monotonic_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

timeval to_timeval(int ms) {
  return {ms / 1000, ms % 1000 * 1000};
}

Result<std::string> unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned value = 0;
    const char* const first = text.data() + std::min(i + 1, text.size());
    const char* const last = text.data() + std::min(i + 3, text.size());
    if (const auto read = std::from_chars(first, last, value, 16);
        last - first != 2 || read.ptr != last) {
      return fail(ErrorCode::kInvalidArgument, "'%' is followed by two hexadecimal digits");
    }
    out += static_cast<char>(value);
    i += 2;
  }
  return out;
}

Result<int> whole_number(std::string_view text, std::string_view what, int least, int most) {
  int value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || value < least ||
      value > most) {
    return fail(ErrorCode::kInvalidArgument, "{} is '{}'; allowed: {} to {}", what, text, least,
                most);
  }
  return value;
}

// Text of a server that may be anything, as one line of a message.
std::string printable(std::string_view text) {
  std::string out(text.substr(0, 200));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  return out;
}

struct ReplyDeleter {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};

// One call: all commands go out and all replies come in before a deadline.
class RedisExchange {
 public:
  RedisExchange(redisContext& context, const RedisAddress& address, const RedisLimits& limits,
                std::span<const RedisCommand> commands, std::size_t most_bytes)
      : context_(context),
        address_(address),
        limits_(limits),
        commands_(commands),
        most_bytes_(most_bytes),
        deadline_(monotonic_ms() + limits.call_ms) {}

  // Commands go out while replies come in: both sides' buffers may be smaller than either.
  Result<std::vector<RedisReply>> run() {
    while (replies_.size() < commands_.size()) {
      KVSPAN_CHECK_OK(write_ahead());
      KVSPAN_TRY(const OwnedReply reply, next_reply());
      if (reply) {
        KVSPAN_CHECK_OK(keep(*reply));
      } else {
        KVSPAN_CHECK_OK(read_more());
      }
    }
    if (context_.reader->pos < context_.reader->len) {
      return fail(ErrorCode::kCorruptData, "{} answers more than it was asked", address_.text());
    }
    if (refused_) return *std::move(refused_);
    return std::move(replies_);
  }

 private:
  using OwnedReply = std::unique_ptr<redisReply, ReplyDeleter>;
  static constexpr std::size_t kAhead =
      16u << 20;  // bytes of commands written before replies are looked at
  static constexpr std::size_t kLongestLine = 4096;

  Error broken() const { return fail(ErrorCode::kIo, "{}: {}", address_.text(), context_.errstr); }
  Error odd(const std::string& what) const {
    return fail(ErrorCode::kCorruptData, "{} does not answer as Redis does: {}", address_.text(),
                what);
  }

  // Waits for the socket until the deadline.
  Status ready(short what) const {
    const std::int64_t left = deadline_ - monotonic_ms();
    pollfd descriptor{context_.fd, what, 0};
    if (left > 0 && poll(&descriptor, 1, static_cast<int>(left)) > 0) return {};
    return fail(ErrorCode::kIo, "{} did not answer within {} ms", address_.text(), limits_.call_ms);
  }

  Status write_ahead() {
    const std::size_t before = sent_;
    for (std::size_t bytes = 0; sent_ < commands_.size() && bytes < kAhead; ++sent_) {
      std::vector<const char*> parts;
      std::vector<std::size_t> sizes;
      for (const std::string_view part : commands_[sent_]) {
        parts.push_back(part.data());
        sizes.push_back(part.size());
        bytes += part.size();
      }
      if (redisAppendCommandArgv(&context_, static_cast<int>(parts.size()), parts.data(),
                                 sizes.data()) != REDIS_OK) {
        return broken();
      }
    }
    for (int done = sent_ == before; done == 0;) {
      KVSPAN_CHECK_OK(ready(POLLOUT));
      if (redisBufferWrite(&context_, &done) != REDIS_OK) return broken();
    }
    return {};
  }

  // Whether the first line of the next reply is there. hiredis makes room for as many elements as
  // an array announces, and goes as deep as arrays are nested: it never gets to see one.
  Result<bool> head_is_there() const {
    const redisReader& reader = *context_.reader;
    const std::string_view coming(reader.buf + reader.pos, reader.len - reader.pos);
    const std::size_t end = coming.substr(0, kLongestLine).find("\r\n");
    if (end == std::string_view::npos) {
      if (coming.size() >= kLongestLine) return odd("a line without end");
      return false;
    }
    const char kind = coming.front();
    if (kind == '+' || kind == '-' || kind == ':') return true;
    if (kind != '$') return odd(fmt::format("a reply of kind {:#04x}", kind));
    std::int64_t bytes = 0;
    const auto read = std::from_chars(coming.data() + 1, coming.data() + end, bytes);
    const bool nothing = bytes == -1;
    if (read.ec != std::errc() || read.ptr != coming.data() + end ||
        (!nothing && (bytes < 0 || static_cast<std::uint64_t>(bytes) > most_bytes_))) {
      return odd(fmt::format("{} bytes where at most {} are stored", coming.substr(1, end - 1),
                             most_bytes_));
    }
    return true;
  }

  // Null where more bytes have to be read first.
  Result<OwnedReply> next_reply() {
    if (!inside_) {
      KVSPAN_TRY(inside_, head_is_there());
      if (!inside_) return OwnedReply();
    }
    void* read = nullptr;
    if (redisReaderGetReply(context_.reader, &read) != REDIS_OK) return odd(context_.reader->errstr);
    inside_ = read == nullptr;
    return OwnedReply(static_cast<redisReply*>(read));
  }

  Status read_more() {
    KVSPAN_CHECK_OK(ready(POLLIN));
    if (redisBufferRead(&context_) != REDIS_OK) return broken();
    return {};
  }

  Status keep(const redisReply& reply) {
    RedisReply out;
    switch (reply.type) {
      case REDIS_REPLY_NIL:
        break;
      case REDIS_REPLY_INTEGER:
        out.kind = RedisReply::Kind::kNumber;
        out.number = reply.integer;
        break;
      case REDIS_REPLY_STRING:
      case REDIS_REPLY_STATUS: {
        const auto* const first = reinterpret_cast<const std::byte*>(reply.str);
        out.kind = RedisReply::Kind::kBytes;
        out.bytes.assign(first, first + reply.len);
        break;
      }
      case REDIS_REPLY_ERROR:
        refused_ = fail(ErrorCode::kOutOfBudget, "{}: {}", address_.text(), printable(reply.str));
        break;
      default:
        return odd(fmt::format("a reply of type {}", reply.type));
    }
    replies_.push_back(std::move(out));
    return {};
  }

  redisContext& context_;
  const RedisAddress& address_;
  const RedisLimits& limits_;
  std::span<const RedisCommand> commands_;
  std::size_t most_bytes_;  // of a reply
  std::int64_t deadline_;
  std::size_t sent_ = 0;  // commands
  bool inside_ = false;  // hiredis has begun with a reply
  std::vector<RedisReply> replies_;
  std::optional<Error> refused_;  // reported when all replies are in, so that the link stays usable
};

}  // namespace

Result<RedisAddress> RedisAddress::parse(std::string_view url) {
  constexpr std::string_view kScheme = "redis://";
  if (!url.starts_with(kScheme)) {
    return fail(
        ErrorCode::kInvalidArgument,
        "'{}' is no address of Redis; allowed: redis://[user:password@]host[:port][/number]",
        url.substr(0, url.find(':')));
  }
  std::string_view rest = url.substr(kScheme.size());
  RedisAddress address;
  if (const std::size_t at = rest.rfind('@'); at != std::string_view::npos) {
    const std::string_view who = rest.substr(0, at);
    rest.remove_prefix(at + 1);
    const std::size_t colon = who.find(':');
    // As redis-cli has it: one word is the password.
    const std::string_view user = colon == std::string_view::npos ? "" : who.substr(0, colon);
    KVSPAN_TRY(address.user, unescape(user));
    KVSPAN_TRY(address.password,
               unescape(colon == std::string_view::npos ? who : who.substr(colon + 1)));
  }
  if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    if (slash + 1 < rest.size()) {
      KVSPAN_TRY(address.database,
                 whole_number(rest.substr(slash + 1), "database of Redis", 0, 1 << 20));
    }
    rest = rest.substr(0, slash);
  }
  std::string_view port;
  if (rest.starts_with('[')) {  // an IPv6 address
    const std::size_t end = rest.find(']');
    if (end == std::string_view::npos) {
      return fail(ErrorCode::kInvalidArgument, "host '{}' of Redis lacks its ']'", rest);
    }
    address.host = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
    if (!rest.empty() && rest.front() != ':') {
      return fail(ErrorCode::kInvalidArgument, "'{}' follows the host of Redis; allowed: :PORT",
                  rest);
    }
    port = rest.empty() ? rest : rest.substr(1);
  } else {
    const std::size_t colon = rest.find(':');
    address.host = rest.substr(0, colon);
    if (colon != std::string_view::npos) port = rest.substr(colon + 1);
  }
  if (address.host.empty()) {
    return fail(ErrorCode::kInvalidArgument, "the address of Redis names no host");
  }
  if (!port.empty()) {
    KVSPAN_TRY(address.port, whole_number(port, "port of Redis", 1, 65535));
  }
  return address;
}

std::string RedisAddress::text() const {
  return fmt::format("redis://{}:{}/{}", host, port, database);
}

RedisLink::RedisLink(RedisAddress address, const RedisLimits& limits)
    : address_(std::move(address)), limits_(limits), context_(nullptr, redisFree) {}

RedisLink::~RedisLink() = default;

void RedisLink::failed() {
  context_.reset();
  pause_ms_ = std::min(pause_ms_ == 0 ? limits_.pause_ms : 2 * pause_ms_, kLongestPauseMs);
  try_again_ms_ = monotonic_ms() + pause_ms_;
}

Status RedisLink::connect() {
  context_.reset(redisConnectWithTimeout(address_.host.c_str(), address_.port,
                                         to_timeval(limits_.connect_ms)));
  if (!context_ || context_->err != 0) {
    return fail(ErrorCode::kIo, "cannot reach {}: {}", address_.text(),
                context_ ? context_->errstr : "no memory");
  }
  // From here on no read or write waits by itself: only exchange() does, and it looks at the clock.
  fcntl(context_->fd, F_SETFL, fcntl(context_->fd, F_GETFL) | O_NONBLOCK);
  context_->flags &= ~REDIS_BLOCK;
  std::vector<RedisCommand> hello;
  if (!address_.password.empty()) {
    hello.push_back(address_.user.empty() ? RedisCommand{"AUTH", address_.password}
                                          : RedisCommand{"AUTH", address_.user, address_.password});
  }
  const std::string database = std::to_string(address_.database);
  if (address_.database != 0) hello.push_back({"SELECT", database});
  if (hello.empty()) return {};
  KVSPAN_TRY(const auto replies, exchange(hello, kShortReply));
  return {};
}

Result<std::vector<RedisReply>> RedisLink::exchange(std::span<const RedisCommand> commands,
                                                    std::size_t most_bytes) {
  return RedisExchange(*context_, address_, limits_, commands, most_bytes).run();
}

Result<std::vector<RedisReply>> RedisLink::call(std::span<const RedisCommand> commands,
                                                std::size_t most_bytes) {
  if (monotonic_ms() < try_again_ms_) {
    return fail(ErrorCode::kIo, "{} was away; it is tried again in {} ms", address_.text(),
                try_again_ms_ - monotonic_ms());
  }
  if (!context_) {
    if (Status connected = connect(); !connected) {
      failed();
      return std::move(connected).error();
    }
  }
  auto replies = exchange(commands, most_bytes);
  if (!replies && replies.error().code != ErrorCode::kOutOfBudget) {
    failed();
  } else {
    pause_ms_ = 0;
  }
  return replies;
}

}  // namespace kvspan
