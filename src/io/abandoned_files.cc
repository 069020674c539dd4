// SPDX-License-Identifier: Apache-2.0
#include "io/abandoned_files.h"

#include <signal.h>
#include <sys/types.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <system_error>

namespace kvspan {
namespace {

namespace fs = std::filesystem;

// Takes a number off the front of `text`; false where there is none.
template <class T>
bool take_number(std::string_view& text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

// The process that `rest`, what follows the prefix of a name, speaks of; 0: none.
pid_t process_of(std::string_view rest, std::string_view suffix) {
  pid_t process = 0;
  if (!take_number(rest, process) || process <= 0) return 0;
  if (suffix.empty()) return rest.empty() ? process : 0;
  unsigned count = 0;
  if (!rest.starts_with('-')) return 0;
  rest.remove_prefix(1);
  return take_number(rest, count) && rest == suffix ? process : 0;
}

}  // namespace

void remove_abandoned(const std::string& prefix, std::string_view suffix) {
  const fs::path path(prefix);
  const std::string start = path.filename().string();
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), none; at != none; at.increment(ignored)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(start)) continue;
    const pid_t process = process_of(std::string_view(name).substr(start.size()), suffix);
    if (process == 0) continue;
    const auto written = at->last_write_time(ignored);
    const bool old = !ignored && fs::file_time_type::clock::now() - written > std::chrono::hours(1);
    if (old && kill(process, 0) != 0 && errno == ESRCH) fs::remove(at->path(), ignored);
  }
}

}  // namespace kvspan
