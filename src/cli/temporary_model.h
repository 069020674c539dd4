// SPDX-License-Identifier: Apache-2.0
// A model file that is there only as long as the program needs it.
#pragma once

#include <string>

#include "kvspan/result.h"
#include "llama/dequantize.h"

namespace kvspan::cli {

class TemporaryModel {
 public:
  // The model at `path` with every weight as f32 or f16, beside it (model/dequantize.h).
  static Result<TemporaryModel> float_copy_of(const std::string& path, FloatWeights weights);
  ~TemporaryModel();  // removes the file
  TemporaryModel(TemporaryModel&& other) noexcept;
  TemporaryModel& operator=(TemporaryModel&& other) noexcept;

  const std::string& path() const noexcept { return path_; }

 private:
  explicit TemporaryModel(std::string path) : path_(std::move(path)) {}
  std::string path_;  // empty: nothing to remove
};

}  // namespace kvspan::cli
