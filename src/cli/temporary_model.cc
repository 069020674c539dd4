// SPDX-License-Identifier: Apache-2.0
#include "cli/temporary_model.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <utility>

#include "base/fail.h"

namespace kvspan::cli {
namespace {

namespace fs = std::filesystem;

// Copies, named `prefix` and a process, whose process was killed before it could remove them. Young
// ones stay: their process may run where it cannot be seen from here.
void remove_abandoned(const fs::path& prefix) {
  const std::string start = prefix.filename().string();
  const fs::path folder = prefix.has_parent_path() ? prefix.parent_path() : ".";
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), none; at != none; at.increment(ignored)) {
    const fs::directory_entry& entry = *at;
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(start)) continue;
    pid_t process = 0;
    const auto [end, error] =
        std::from_chars(name.data() + start.size(), name.data() + name.size(), process);
    if (error != std::errc() || end != name.data() + name.size() || process <= 0) continue;
    const auto written = entry.last_write_time(ignored);
    const bool old = !ignored && fs::file_time_type::clock::now() - written > std::chrono::hours(1);
    if (old && kill(process, 0) != 0 && errno == ESRCH) fs::remove(entry.path(), ignored);
  }
}

}  // namespace

Result<TemporaryModel> TemporaryModel::float_copy_of(const std::string& path,
                                                     FloatWeights weights) {
  const char* const name = weights == FloatWeights::kF32 ? "f32" : "f16";
  const std::string prefix = fmt::format("{}.{}.", path, name);
  remove_abandoned(prefix);
  TemporaryModel copy(fmt::format("{}{}", prefix, getpid()));
  KVSPAN_CHECK_OK(write_float_model(path, weights, copy.path_));
  return copy;
}

TemporaryModel::~TemporaryModel() {
  if (!path_.empty()) unlink(path_.c_str());
}

TemporaryModel::TemporaryModel(TemporaryModel&& other) noexcept
    : path_(std::exchange(other.path_, {})) {}

TemporaryModel& TemporaryModel::operator=(TemporaryModel&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

}  // namespace kvspan::cli
