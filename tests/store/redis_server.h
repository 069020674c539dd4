// SPDX-License-Identifier: Apache-2.0
// Redis for one test, on a port of its own, and servers that are not Redis.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "io/redis_link.h"

namespace kvspan::testing {

// A listening socket on a free port of this machine.
struct Listener {
  Listener() : descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    const int yes = 1;
    setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(descriptor, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
        listen(descriptor, 16) == 0 &&
        getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
      port = ntohs(address.sin_port);
    }
  }
  ~Listener() { close(descriptor); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  int descriptor = -1, port = 0;
};

class RedisServer {
 public:
  explicit RedisServer(std::vector<std::string> flags = {}) : flags_(std::move(flags)) {
    port_ = Listener().port;
    start();
  }
  ~RedisServer() { kill_now(); }
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  static bool installed() { return system("command -v redis-server >/dev/null 2>&1") == 0; }
  RedisAddress address() const {
    RedisAddress to;
    to.host = "127.0.0.1";
    to.port = port_;
    return to;
  }
  void start() {
    std::vector<std::string> words = {"redis-server", "--port",   std::to_string(port_),
                                      "--bind",       "127.0.0.1", "--save", "",
                                      "--appendonly", "no"};
    words.insert(words.end(), flags_.begin(), flags_.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    process_ = fork();
    if (process_ == 0) {
      const int nothing = open("/dev/null", O_RDWR);
      dup2(nothing, 1);
      dup2(nothing, 2);
      execvp(argv[0], argv.data());
      _exit(127);
    }
    // Until it answers.
    for (int i = 0; i < 3000; ++i) {
      RedisLink link(address());
      const std::vector<RedisCommand> ping = {{"PING"}};
      const auto reply = link.call(ping);
      if (reply || reply.error().code == ErrorCode::kOutOfBudget) return;
      usleep(10'000);
    }
  }
  void kill_now() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    process_ = 0;
  }

 private:
  std::vector<std::string> flags_;
  int port_ = 0;
  pid_t process_ = 0;
};

// Answers every connection with `behave`, which gets the connected socket.
class OtherServer {
 public:
  explicit OtherServer(std::function<void(int, const std::atomic<bool>&)> behave)
      : thread_([this, behave] {
          std::vector<std::thread> threads;
          while (true) {
            const int client = accept(listener_.descriptor, nullptr, nullptr);
            if (client < 0) break;
            threads.emplace_back([this, behave, client] {
              behave(client, ends_);
              close(client);
            });
          }
          for (std::thread& thread : threads) thread.join();
        }) {}
  ~OtherServer() {
    ends_ = true;
    shutdown(listener_.descriptor, SHUT_RDWR);
    thread_.join();
  }
  RedisAddress address() const {
    RedisAddress to;
    to.host = "127.0.0.1";
    to.port = listener_.port;
    return to;
  }

 private:
  Listener listener_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

}  // namespace kvspan::testing
