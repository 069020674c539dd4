// SPDX-License-Identifier: Apache-2.0
#include "io/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/expect.h"
#include "base/fail.h"

extern char** environ;

namespace kvspan {
namespace {

// Ignores the two keyboard signals for its lifetime.
class KeyboardIgnored {
 public:
  KeyboardIgnored() {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGINT, &ignore, &interrupt_);
    sigaction(SIGQUIT, &ignore, &quit_);
  }
  ~KeyboardIgnored() {
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGQUIT, &quit_, nullptr);
  }
  KeyboardIgnored(const KeyboardIgnored&) = delete;
  KeyboardIgnored& operator=(const KeyboardIgnored&) = delete;

 private:
  struct sigaction interrupt_ {};
  struct sigaction quit_ {};
};

// Starts argv with `output` as its standard output and the keyboard signals at their defaults.
int spawn(const std::vector<std::string>& argv, int output, pid_t& child) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGINT);
  sigaddset(&defaults, SIGQUIT);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  const int error =
      posix_spawnp(&child, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

std::string read_to_end(int descriptor) {
  std::string text;
  std::array<char, 4096> block;
  while (true) {
    const ssize_t n = ::read(descriptor, block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(block.data(), static_cast<std::size_t>(n));
  }
}

}  // namespace

Result<ProcessEnd> run_process(const std::vector<std::string>& argv) {
  KVSPAN_EXPECT(!argv.empty(), "a program to run");
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return fail(ErrorCode::kIo, "cannot make a pipe: {}", std::strerror(errno));
  }
  const KeyboardIgnored ignored;
  pid_t child = 0;
  const int error = spawn(argv, ends[1], child);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return fail(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "cannot run '{}': {}",
                argv[0], std::strerror(error));
  }
  ProcessEnd end;
  end.output = read_to_end(ends[0]);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      return fail(ErrorCode::kIo, "cannot wait for '{}': {}", argv[0], std::strerror(errno));
    }
  }
  end.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return end;
}

}  // namespace kvspan
