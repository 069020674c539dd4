// SPDX-License-Identifier: Apache-2.0
#include "llama/calibration_file.h"

#include <ggml.h>
#include <gguf.h>

#include <cstring>
#include <memory>

#include "base/byte_stream.h"
#include "base/fail.h"
#include "base/half.h"
#include "io/atomic_file.h"
#include "io/random_file.h"
#include "io/user_folders.h"
#include "llama/calibration_reader.h"
#include "llama/file_fingerprint.h"

namespace kvspan {
namespace {

using detail::calibration_key;
using detail::CalibrationArray;
using detail::CalibrationBytes;
using detail::CalibrationReader;
using detail::kCalibrationArrays;
using detail::kChecksumBytes;

void set_metadata(gguf_context* gguf, const Calibration& calibration) {
  gguf_set_val_str(gguf, "general.architecture", detail::kCalibrationKind);
  gguf_set_val_u32(gguf, calibration_key("version").c_str(), detail::kCalibrationVersion);
  gguf_set_val_str(gguf, calibration_key("model").c_str(), calibration.model.c_str());
  gguf_set_val_str(gguf, calibration_key("fingerprint").c_str(), calibration.fingerprint.c_str());
  gguf_set_val_i64(gguf, calibration_key("tokens").c_str(), calibration.tokens);
  gguf_set_val_i32(gguf, calibration_key("window").c_str(), calibration.window);
  gguf_set_val_i32(gguf, calibration_key("skip").c_str(), calibration.skip);
  gguf_set_val_u32(gguf, calibration_key("layers").c_str(),
                   static_cast<std::uint32_t>(calibration.layers.size()));
  gguf_set_arr_data(gguf, calibration_key("sample_positions").c_str(), GGUF_TYPE_INT32,
                    calibration.sample_positions.data(), calibration.sample_positions.size());
  std::vector<double> energy;
  std::vector<float> key_weight, value_weight;
  for (const LayerCalibration& layer : calibration.layers) {
    energy.push_back(layer.residual_energy);
    key_weight.push_back(layer.key_weight);
    value_weight.push_back(layer.value_weight);
  }
  gguf_set_arr_data(gguf, calibration_key("residual_energy").c_str(), GGUF_TYPE_FLOAT64,
                    energy.data(), energy.size());
  gguf_set_arr_data(gguf, calibration_key("key_weight").c_str(), GGUF_TYPE_FLOAT32,
                    key_weight.data(), key_weight.size());
  gguf_set_arr_data(gguf, calibration_key("value_weight").c_str(), GGUF_TYPE_FLOAT32,
                    value_weight.data(), value_weight.size());
  std::vector<float> rates;
  for (const RatePoint& point : calibration.rates) {
    rates.insert(rates.end(), {point.bits, point.kl, point.loss});
  }
  gguf_set_arr_data(gguf, calibration_key("rates").c_str(), GGUF_TYPE_FLOAT32, rates.data(),
                    rates.size());
}

void put_array(const std::vector<float>& numbers, bool half, std::byte* to) {
  if (!half) {
    if (!numbers.empty()) std::memcpy(to, numbers.data(), numbers.size() * sizeof(float));
    return;
  }
  for (const float number : numbers) {
    const Half narrow = to_half(number);
    std::memcpy(to, &narrow.bits, sizeof narrow.bits);
    to += sizeof narrow.bits;
  }
}

}  // namespace

Result<std::vector<std::byte>> encode_calibration(const Calibration& calibration) {
  const detail::Gguf gguf(gguf_init_empty());
  set_metadata(gguf.get(), calibration);
  const std::size_t count = calibration.layers.size() * kCalibrationArrays.size();
  const detail::Tensors tensors(ggml_init({(count + 1) * ggml_tensor_overhead(), nullptr, true}));
  if (!tensors) return fail(ErrorCode::kOutOfBudget, "no memory to write a calibration");
  for (std::size_t i = 0; i < calibration.layers.size(); ++i) {
    for (const CalibrationArray& array : kCalibrationArrays) {
      const auto& numbers = calibration.layers[i].*array.numbers;
      ggml_tensor* tensor =
          ggml_new_tensor_1d(tensors.get(), array.half ? GGML_TYPE_F16 : GGML_TYPE_F32,
                             static_cast<std::int64_t>(numbers.size()));
      ggml_set_name(tensor, detail::tensor_name(i, array).c_str());
      gguf_add_tensor(gguf.get(), tensor);
    }
  }
  const std::size_t header = gguf_get_meta_size(gguf.get());
  std::size_t end = header;
  for (std::size_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::int64_t>(i);
    end = header + gguf_get_tensor_offset(gguf.get(), id) + gguf_get_tensor_size(gguf.get(), id);
  }
  const std::size_t alignment = gguf_get_alignment(gguf.get());
  end = (end + alignment - 1) / alignment * alignment;
  std::vector<std::byte> bytes(end + kChecksumBytes);
  gguf_get_meta_data(gguf.get(), bytes.data());
  for (std::size_t i = 0; i < count; ++i) {
    const CalibrationArray& array = kCalibrationArrays[i % kCalibrationArrays.size()];
    put_array(
        calibration.layers[i / kCalibrationArrays.size()].*array.numbers, array.half,
        bytes.data() + header + gguf_get_tensor_offset(gguf.get(), static_cast<std::int64_t>(i)));
  }
  const std::uint64_t checksum = crc64(std::span(bytes).first(end));
  std::memcpy(bytes.data() + end, &checksum, kChecksumBytes);
  return bytes;
}

Status save_calibration(const std::string& path, const Calibration& calibration) {
  KVSPAN_TRY(const auto bytes, encode_calibration(calibration));
  return write_file(path, bytes);
}

Result<Calibration> decode_calibration(std::span<const std::byte> bytes, const std::string& name) {
  CalibrationBytes from{name, bytes.size(), nullptr, nullptr};
  from.read = [bytes](std::size_t offset, std::span<std::byte> to) -> Status {
    if (!to.empty()) std::memcpy(to.data(), bytes.data() + offset, to.size());
    return {};
  };
  // Only read from; the C interface has no const form.
  from.stream = [bytes] {
    return fmemopen(const_cast<std::byte*>(bytes.data()), bytes.size() - kChecksumBytes, "rb");
  };
  KVSPAN_TRY(const auto reader, CalibrationReader::open(std::move(from)));
  Calibration calibration = reader->header();
  for (std::size_t i = 0; i < calibration.layers.size(); ++i) {
    KVSPAN_TRY(calibration.layers[i], reader->layer(i));
  }
  return calibration;
}

namespace {

// Of the model with that fingerprint, whose shape it is not held against.
Result<Calibration> open_for(const std::string& fingerprint, const std::string& model,
                             const std::string& path) {
  KVSPAN_TRY(RandomFile opened, RandomFile::open(path));
  const auto file = std::make_shared<const RandomFile>(std::move(opened));
  CalibrationBytes from{path, file->bytes(), nullptr, nullptr};
  from.read = [file](std::size_t offset, std::span<std::byte> to) {
    return file->read(offset, to);
  };
  from.stream = [file] { return file->stream(); };
  KVSPAN_TRY(const auto reader, CalibrationReader::open(std::move(from)));
  Calibration calibration = reader->header();
  if (calibration.fingerprint != fingerprint) {
    return fail(
        ErrorCode::kInvalidArgument,
        "calibration '{}' was made for the model '{}' with fingerprint {}; this is '{}' with "
        "fingerprint {} (kvspan calibrate makes its own)",
        path, calibration.model, calibration.fingerprint, model, fingerprint);
  }
  calibration.source = path;
  calibration.read_layer = [reader](std::size_t layer) { return reader->layer(layer); };
  return calibration;
}

Result<std::string> path_for(const std::string& fingerprint) {
  KVSPAN_TRY(const std::string folder, user_cache_folder());
  return fmt::format("{}/calibration/{}.gguf", folder, fingerprint);
}

Result<std::optional<Calibration>> or_none(Result<Calibration> opened) {
  if (opened) return std::optional<Calibration>(std::move(*opened));
  // One that an earlier kvspan wrote is as good as none: making it anew replaces it.
  if (opened.error().code == ErrorCode::kNotFound ||
      opened.error().code == ErrorCode::kUnsupported) {
    return std::optional<Calibration>();
  }
  return std::move(opened).error();
}

}  // namespace

Result<Calibration> open_calibration(const Engine& engine, const std::string& path) {
  KVSPAN_TRY(Calibration calibration, open_for(engine.fingerprint(), engine.info().name, path));
  if (Status status = check_calibration(engine.cache_shape(), calibration); !status) {
    return fail(ErrorCode::kCorruptData, "'{}': {}", path, status.error().message);
  }
  return calibration;
}

Result<Calibration> load_calibration(const Engine& engine, const std::string& path) {
  KVSPAN_TRY(const Calibration opened, open_calibration(engine, path));
  auto whole = read_whole(engine.cache_shape(), opened);
  if (!whole) {
    return fail(ErrorCode::kCorruptData, "'{}': {}", path, whole.error().message);
  }
  return whole;
}

Result<std::string> calibration_path(const Engine& engine) {
  return path_for(engine.fingerprint());
}

Result<std::optional<Calibration>> find_calibration(const Engine& engine) {
  KVSPAN_TRY(const std::string path, calibration_path(engine));
  return or_none(open_calibration(engine, path));
}

Result<std::optional<Calibration>> find_calibration(const std::string& model_path) {
  KVSPAN_TRY(const std::string fingerprint, file_fingerprint(model_path));
  KVSPAN_TRY(const std::string path, path_for(fingerprint));
  return or_none(open_for(fingerprint, model_path, path));
}

}  // namespace kvspan
