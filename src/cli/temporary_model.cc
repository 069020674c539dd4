// SPDX-License-Identifier: Apache-2.0
#include "cli/temporary_model.h"

#include <unistd.h>

#include <utility>

#include "base/fail.h"
#include "io/abandoned_files.h"

namespace kvspan::cli {
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
