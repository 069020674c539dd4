// SPDX-License-Identifier: Apache-2.0
#include "cli/temporary_model.h"

#include <unistd.h>

#include <utility>

#include "base/fail.h"
#include "model/dequantize.h"

namespace kvspan::cli {

Result<TemporaryModel> TemporaryModel::f32_copy_of(const std::string& path) {
  TemporaryModel copy(fmt::format("{}.f32.{}", path, getpid()));
  KVSPAN_CHECK_OK(write_f32_model(path, copy.path_));
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
