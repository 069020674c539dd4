// SPDX-License-Identifier: Apache-2.0
// The server waits for clients that are being answered when it is stopped, and some never leave: an
// answer that streams is not ended by stopping its computation. Here the handlers that it installs
// (scripts/join_server.sh) get a limit: some seconds after the first signal the program ends
// without them. Nothing is lost by that; files are complete or not there.
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

namespace kvspan::server {
namespace {

constexpr std::chrono::seconds kGrace{3};

void (*server_handler)(int) = nullptr;
sem_t stopped;

void on_signal(int signal) {
  sem_post(&stopped);
  server_handler(signal);
}

void watch() {
  while (sem_wait(&stopped) != 0) {  // interrupted
  }
  std::this_thread::sleep_for(kGrace);
  std::fflush(nullptr);
  _exit(0);
}

}  // namespace
}  // namespace kvspan::server

extern "C" int kvspan_serve_sigaction(int signal, const struct sigaction* action, struct sigaction* before) {
  using namespace kvspan::server;
  if (signal != SIGINT && signal != SIGTERM) return sigaction(signal, action, before);
  if (server_handler == nullptr) {
    server_handler = action->sa_handler;
    sem_init(&stopped, 0, 0);
    std::thread(watch).detach();
  }
  struct sigaction ours = *action;
  ours.sa_handler = on_signal;
  return sigaction(signal, &ours, before);
}
