// SPDX-License-Identifier: Apache-2.0
// What a server that is taken for Redis answers. The store gets an answer of the length of its question or an error,
// within its deadline.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "store/redis_blobs.h"
#include "tests/fuzz/target.h"

namespace kvspan::fuzz {
namespace {

constexpr RedisLimits kLimits{.connect_ms = 2000, .call_ms = 2000, .pause_ms = 0};

// Answers every connection with the same bytes and closes it.
class Liar {
 public:
  Liar() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    must(listener_ >= 0 && bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
             listen(listener_, 16) == 0 && getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0,
         "no socket");
    port_ = ntohs(address.sin_port);
    std::thread([this] { serve(); }).detach();
  }
  int port() const noexcept { return port_; }
  void say(std::span<const std::uint8_t> bytes) {
    const std::lock_guard lock(mutex_);
    bytes_.assign(bytes.begin(), bytes.end());
  }

 private:
  void serve() {
    while (true) {
      const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) continue;
      char question[4096];
      if (recv(client, question, sizeof question, 0) > 0) {
        const std::lock_guard lock(mutex_);
        (void)send(client, bytes_.data(), bytes_.size(), MSG_NOSIGNAL);
      }
      // The client reads all of it before it learns of the end.
      shutdown(client, SHUT_WR);
      while (recv(client, question, sizeof question, 0) > 0) {}
      close(client);
    }
  }

  int listener_, port_ = 0;
  std::mutex mutex_;
  Bytes bytes_;
};

bool run(std::span<const std::uint8_t> input) {
  static Liar& liar = *new Liar;  // its thread runs to the end
  if (input.empty()) return false;
  liar.say(input.subspan(1));
  RedisAddress address;
  address.host = "127.0.0.1";
  address.port = liar.port();
  RedisBlobs blobs(address, 60, kLimits);
  const std::vector<std::string> keys{"a", "b", "c"};
  const auto asked = std::chrono::steady_clock::now();
  bool accepted = false;
  if (input[0] % 3 == 0) {
    const auto found = blobs.get(keys, 1 << 20);
    must(!found || found->size() == keys.size(), "{} answers to {} questions", found ? found->size() : 0, keys.size());
    accepted = found.has_value();
  } else if (input[0] % 3 == 1) {
    const auto there = blobs.has(keys);
    must(!there || there->size() == keys.size(), "{} answers to {} questions", there ? there->size() : 0, keys.size());
    accepted = there.has_value();
  } else {
    const BlobView blob{keys[0], std::as_bytes(input)};
    accepted = blobs.put(std::span(&blob, 1)).has_value();
  }
  const auto took = std::chrono::steady_clock::now() - asked;
  must(took < std::chrono::milliseconds(3 * (kLimits.connect_ms + kLimits.call_ms)), "it took longer than its deadline");
  return accepted;
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  const auto add = [&](std::uint8_t kind, std::string_view text) {
    Bytes& bytes = all.emplace_back(Bytes{kind});
    bytes.insert(bytes.end(), text.begin(), text.end());
  };
  // Of a get: whether the entry is there, and its bytes, for each key.
  add(0, ":1\r\n$5\r\nhello\r\n:0\r\n$0\r\n\r\n:1\r\n$0\r\n\r\n");
  add(0, ":0\r\n$0\r\n\r\n:0\r\n$0\r\n\r\n:0\r\n$2\r\nab\r\n");
  add(1, ":1\r\n:0\r\n:1\r\n");
  add(2, "+OK\r\n");
  return all;
}

}  // namespace

extern const Target redis_replies_target{"redis_replies", "answers of a server that is taken for Redis", 1 << 12, run, seeds};

}  // namespace kvspan::fuzz
