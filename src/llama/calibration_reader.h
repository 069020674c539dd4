// SPDX-License-Identifier: Apache-2.0
// Reads calibration files (docs/reference/formats/calibration.md), whole or one layer at a time:
// the header is parsed once, arrays are read when they are asked for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvspan/calibration.h"
#include "kvspan/result.h"

struct ggml_context;
struct gguf_context;

namespace kvspan::detail {

inline constexpr std::uint32_t kCalibrationVersion = 2;
inline constexpr const char* kCalibrationKind = "kvspan-calibration";  // general.architecture
inline constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);

struct FreeGgml {
  void operator()(gguf_context* gguf) const;
  void operator()(ggml_context* tensors) const;
};
using Gguf = std::unique_ptr<gguf_context, FreeGgml>;
using Tensors = std::unique_ptr<ggml_context, FreeGgml>;

// kvspan.calibration.<name>
std::string calibration_key(const char* name);

// An array of every layer, in the order of the file.
struct CalibrationArray {
  const char* name;
  std::vector<float> LayerCalibration::*numbers;
  bool half;  // stored as f16
};
inline constexpr std::array kCalibrationArrays{
    CalibrationArray{"key_mean", &LayerCalibration::key_mean, false},
    CalibrationArray{"value_mean", &LayerCalibration::value_mean, false},
    CalibrationArray{"joint_moment", &LayerCalibration::joint_moment, false},
    CalibrationArray{"rotated_key_mean", &LayerCalibration::rotated_key_mean, false},
    CalibrationArray{"rotated_key_moment", &LayerCalibration::rotated_key_moment, false},
    CalibrationArray{"query_moment", &LayerCalibration::query_moment, false},
    CalibrationArray{"raw_query_moment", &LayerCalibration::raw_query_moment, false},
    CalibrationArray{"output_metric", &LayerCalibration::output_metric, false},
    CalibrationArray{"sample_rows", &LayerCalibration::sample_rows, true},
    CalibrationArray{"key_residuals", &LayerCalibration::key_residuals, false},
    CalibrationArray{"value_residuals", &LayerCalibration::value_residuals, false},
};

std::string tensor_name(std::size_t layer, const CalibrationArray& array);

// Where the bytes of a file are; `read` may be called from several threads at once.
struct CalibrationBytes {
  std::string name;  // in errors
  std::size_t size = 0;
  std::function<Status(std::size_t offset, std::span<std::byte> to)> read;
  std::function<std::FILE*()> stream;  // from the start, for the caller to close; null: cannot
};

class CalibrationReader {
 public:
  // Checks the checksum over all bytes, a piece at a time, and parses the header.
  static Result<std::shared_ptr<const CalibrationReader>> open(CalibrationBytes bytes);

  // All but the arrays of its layers.
  const Calibration& header() const noexcept { return header_; }
  // One layer with its arrays.
  Result<LayerCalibration> layer(std::size_t index) const;

 private:
  explicit CalibrationReader(CalibrationBytes bytes) : bytes_(std::move(bytes)) {}
  Status check_sum() const;
  Status parse();
  Status read_header();
  Result<std::int64_t> find(const char* what, int type, bool array = false) const;
  template <class T>
  Result<std::vector<T>> numbers(const char* what, int type) const;
  Result<std::vector<float>> array(std::size_t layer, const CalibrationArray& array) const;

  CalibrationBytes bytes_;
  std::size_t content_ = 0;  // bytes before the checksum
  Gguf gguf_;
  Tensors tensors_;
  Calibration header_;
};

}  // namespace kvspan::detail
