// SPDX-License-Identifier: Apache-2.0
#include "model/calibration_file.h"

#include <ggml.h>
#include <gguf.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/byte_stream.h"
#include "base/fail.h"
#include "base/half.h"
#include "io/atomic_file.h"
#include "io/user_folders.h"
#include "model/ggml_log.h"

namespace kvspan {
namespace {

constexpr std::uint32_t kVersion = 2;
constexpr const char* kKind = "kvspan-calibration";  // general.architecture
constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);

struct Free {
  void operator()(gguf_context* gguf) const { gguf_free(gguf); }
  void operator()(ggml_context* tensors) const { ggml_free(tensors); }
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using Gguf = std::unique_ptr<gguf_context, Free>;
using Tensors = std::unique_ptr<ggml_context, Free>;

std::string key(const char* name) {
  return fmt::format("kvspan.calibration.{}", name);
}

struct Array {
  const char* name;
  std::vector<float> LayerCalibration::*numbers;
  bool half;  // stored as f16
};
constexpr std::array kArrays{
    Array{"key_mean", &LayerCalibration::key_mean, false},
    Array{"value_mean", &LayerCalibration::value_mean, false},
    Array{"joint_moment", &LayerCalibration::joint_moment, false},
    Array{"rotated_key_mean", &LayerCalibration::rotated_key_mean, false},
    Array{"rotated_key_moment", &LayerCalibration::rotated_key_moment, false},
    Array{"query_moment", &LayerCalibration::query_moment, false},
    Array{"raw_query_moment", &LayerCalibration::raw_query_moment, false},
    Array{"output_metric", &LayerCalibration::output_metric, false},
    Array{"sample_rows", &LayerCalibration::sample_rows, true},
    Array{"key_residuals", &LayerCalibration::key_residuals, false},
    Array{"value_residuals", &LayerCalibration::value_residuals, false},
};

std::string tensor_name(std::size_t layer, const Array& array) {
  return fmt::format("layer.{}.{}", layer, array.name);
}

void set_metadata(gguf_context* gguf, const Calibration& calibration) {
  gguf_set_val_str(gguf, "general.architecture", kKind);
  gguf_set_val_u32(gguf, key("version").c_str(), kVersion);
  gguf_set_val_str(gguf, key("model").c_str(), calibration.model.c_str());
  gguf_set_val_str(gguf, key("fingerprint").c_str(), calibration.fingerprint.c_str());
  gguf_set_val_i64(gguf, key("tokens").c_str(), calibration.tokens);
  gguf_set_val_i32(gguf, key("window").c_str(), calibration.window);
  gguf_set_val_i32(gguf, key("skip").c_str(), calibration.skip);
  gguf_set_val_u32(gguf, key("layers").c_str(),
                   static_cast<std::uint32_t>(calibration.layers.size()));
  gguf_set_arr_data(gguf, key("sample_positions").c_str(), GGUF_TYPE_INT32,
                    calibration.sample_positions.data(), calibration.sample_positions.size());
  std::vector<double> energy;
  std::vector<float> key_weight, value_weight;
  for (const LayerCalibration& layer : calibration.layers) {
    energy.push_back(layer.residual_energy);
    key_weight.push_back(layer.key_weight);
    value_weight.push_back(layer.value_weight);
  }
  gguf_set_arr_data(gguf, key("residual_energy").c_str(), GGUF_TYPE_FLOAT64, energy.data(),
                    energy.size());
  gguf_set_arr_data(gguf, key("key_weight").c_str(), GGUF_TYPE_FLOAT32, key_weight.data(),
                    key_weight.size());
  gguf_set_arr_data(gguf, key("value_weight").c_str(), GGUF_TYPE_FLOAT32, value_weight.data(),
                    value_weight.size());
  std::vector<float> rates;
  for (const RatePoint& point : calibration.rates) {
    rates.insert(rates.end(), {point.bits, point.kl, point.loss});
  }
  gguf_set_arr_data(gguf, key("rates").c_str(), GGUF_TYPE_FLOAT32, rates.data(), rates.size());
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

std::vector<float> get_array(const std::byte* from, std::size_t count, bool half) {
  std::vector<float> numbers(count);
  if (!half) {
    if (count > 0) std::memcpy(numbers.data(), from, count * sizeof(float));
    return numbers;
  }
  for (float& number : numbers) {
    Half narrow;
    std::memcpy(&narrow.bits, from, sizeof narrow.bits);
    number = to_float(narrow);
    from += sizeof narrow.bits;
  }
  return numbers;
}

// Reads one file's parsed header; every getter fails with the file's name and the key or tensor.
class Reader {
 public:
  Reader(std::string name, const gguf_context* gguf, ggml_context* tensors,
         std::span<const std::byte> bytes)
      : name_(std::move(name)), gguf_(gguf), tensors_(tensors), bytes_(bytes) {}

  Result<std::int64_t> find(const char* what, gguf_type type, bool array = false) const {
    const std::int64_t id = gguf_find_key(gguf_, key(what).c_str());
    if (id < 0) return damaged("the key {} is missing", key(what));
    const gguf_type found = gguf_get_kv_type(gguf_, id);
    const bool fits =
        array ? found == GGUF_TYPE_ARRAY && gguf_get_arr_type(gguf_, id) == type : found == type;
    if (!fits) return damaged("the key {} is {}", key(what), gguf_type_name(found));
    return id;
  }
  template <class T>
  Result<std::vector<T>> numbers(const char* what, gguf_type type) const {
    KVSPAN_TRY(const std::int64_t id, find(what, type, true));
    const auto* data = static_cast<const T*>(gguf_get_arr_data(gguf_, id));
    return std::vector<T>(data, data + gguf_get_arr_n(gguf_, id));
  }
  Result<std::vector<float>> array(std::size_t layer, const Array& array) const {
    const std::string tensor = tensor_name(layer, array);
    const std::int64_t id = gguf_find_tensor(gguf_, tensor.c_str());
    if (id < 0) return damaged("the tensor {} is missing", tensor);
    const ggml_type type = gguf_get_tensor_type(gguf_, id);
    if (type != (array.half ? GGML_TYPE_F16 : GGML_TYPE_F32)) {
      return damaged("the tensor {} is of type {}", tensor, ggml_type_name(type));
    }
    const std::size_t size = gguf_get_tensor_size(gguf_, id);
    const std::size_t start = gguf_get_data_offset(gguf_);
    const std::size_t offset = gguf_get_tensor_offset(gguf_, id);
    if (start > bytes_.size() || offset > bytes_.size() - start ||
        size > bytes_.size() - start - offset) {
      return damaged("the tensor {} ends beyond the file", tensor);
    }
    const auto count =
        static_cast<std::size_t>(ggml_nelements(ggml_get_tensor(tensors_, tensor.c_str())));
    return get_array(bytes_.data() + start + offset, count, array.half);
  }
  template <class... Args>
  Error damaged(fmt::format_string<Args...> text, Args&&... args) const {
    return fail(ErrorCode::kCorruptData, "calibration '{}' is damaged: {}", name_,
                fmt::format(text, std::forward<Args>(args)...));
  }
  const gguf_context* gguf() const { return gguf_; }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  const gguf_context* gguf_;
  ggml_context* tensors_;
  std::span<const std::byte> bytes_;
};

Result<Calibration> read_all(const Reader& reader) {
  Calibration out;
  const gguf_context* gguf = reader.gguf();
  KVSPAN_TRY(const std::int64_t version, reader.find("version", GGUF_TYPE_UINT32));
  if (gguf_get_val_u32(gguf, version) != kVersion) {
    return fail(ErrorCode::kUnsupported,
                "calibration '{}' is of version {}, this kvspan reads version {} (kvspan calibrate "
                "makes it anew)",
                reader.name(), gguf_get_val_u32(gguf, version), kVersion);
  }
  KVSPAN_TRY(const std::int64_t model, reader.find("model", GGUF_TYPE_STRING));
  KVSPAN_TRY(const std::int64_t fingerprint, reader.find("fingerprint", GGUF_TYPE_STRING));
  KVSPAN_TRY(const std::int64_t tokens, reader.find("tokens", GGUF_TYPE_INT64));
  KVSPAN_TRY(const std::int64_t window, reader.find("window", GGUF_TYPE_INT32));
  KVSPAN_TRY(const std::int64_t skip, reader.find("skip", GGUF_TYPE_INT32));
  KVSPAN_TRY(const std::int64_t layers, reader.find("layers", GGUF_TYPE_UINT32));
  out.model = gguf_get_val_str(gguf, model);
  out.fingerprint = gguf_get_val_str(gguf, fingerprint);
  out.tokens = gguf_get_val_i64(gguf, tokens);
  out.window = gguf_get_val_i32(gguf, window);
  out.skip = gguf_get_val_i32(gguf, skip);
  const std::size_t count = gguf_get_val_u32(gguf, layers);
  KVSPAN_TRY(out.sample_positions,
             reader.numbers<std::int32_t>("sample_positions", GGUF_TYPE_INT32));
  KVSPAN_TRY(const auto energy, reader.numbers<double>("residual_energy", GGUF_TYPE_FLOAT64));
  KVSPAN_TRY(const auto key_weight, reader.numbers<float>("key_weight", GGUF_TYPE_FLOAT32));
  KVSPAN_TRY(const auto value_weight, reader.numbers<float>("value_weight", GGUF_TYPE_FLOAT32));
  if (energy.size() != count || key_weight.size() != count || value_weight.size() != count) {
    return reader.damaged("{} layers, but {} energies and {} and {} weights", count, energy.size(),
                          key_weight.size(), value_weight.size());
  }
  KVSPAN_TRY(const auto rates, reader.numbers<float>("rates", GGUF_TYPE_FLOAT32));
  for (std::size_t i = 0; i + 2 < rates.size(); i += 3) {
    out.rates.push_back({rates[i], rates[i + 1], rates[i + 2]});
  }
  out.layers.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    LayerCalibration& layer = out.layers[i];
    for (const Array& array : kArrays) {
      KVSPAN_TRY(layer.*array.numbers, reader.array(i, array));
    }
    layer.residual_energy = energy[i];
    layer.key_weight = key_weight[i];
    layer.value_weight = value_weight[i];
  }
  return out;
}

}  // namespace

Result<std::vector<std::byte>> encode_calibration(const Calibration& calibration) {
  const Gguf gguf(gguf_init_empty());
  set_metadata(gguf.get(), calibration);
  const std::size_t count = calibration.layers.size() * kArrays.size();
  const Tensors tensors(ggml_init({(count + 1) * ggml_tensor_overhead(), nullptr, true}));
  if (!tensors) return fail(ErrorCode::kOutOfBudget, "no memory to write a calibration");
  for (std::size_t i = 0; i < calibration.layers.size(); ++i) {
    for (const Array& array : kArrays) {
      const auto& numbers = calibration.layers[i].*array.numbers;
      ggml_tensor* tensor =
          ggml_new_tensor_1d(tensors.get(), array.half ? GGML_TYPE_F16 : GGML_TYPE_F32,
                             static_cast<std::int64_t>(numbers.size()));
      ggml_set_name(tensor, tensor_name(i, array).c_str());
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
    const Array& array = kArrays[i % kArrays.size()];
    put_array(
        calibration.layers[i / kArrays.size()].*array.numbers, array.half,
        bytes.data() + header + gguf_get_tensor_offset(gguf.get(), static_cast<std::int64_t>(i)));
  }
  const std::uint64_t checksum = crc64(std::span(bytes).first(end));
  std::memcpy(bytes.data() + end, &checksum, kChecksumBytes);
  return bytes;
}

Result<Calibration> decode_calibration(std::span<const std::byte> bytes, const std::string& name) {
  const auto damaged = [&](std::string_view what) {
    return fail(ErrorCode::kCorruptData, "calibration '{}' is damaged: {}", name, what);
  };
  if (bytes.size() < 24 + kChecksumBytes || std::memcmp(bytes.data(), "GGUF", 4) != 0) {
    return damaged("it does not start as a GGUF file");
  }
  const auto content = bytes.first(bytes.size() - kChecksumBytes);
  std::uint64_t checksum = 0;
  std::memcpy(&checksum, content.data() + content.size(), kChecksumBytes);
  if (crc64(content) != checksum) {
    return damaged("its checksum differs (the file was cut off or changed)");
  }
  GgmlLogCapture log;
  // Only read from; the C interface has no const form.
  const std::unique_ptr<std::FILE, Free> file(
      fmemopen(const_cast<std::byte*>(content.data()), content.size(), "rb"));
  if (!file) return fail(ErrorCode::kIo, "cannot read calibration '{}' from memory", name);
  ggml_context* raw_tensors = nullptr;
  const Gguf gguf(gguf_init_from_file_ptr(file.get(), {/*no_alloc=*/true, &raw_tensors}));
  const Tensors tensors(raw_tensors);
  if (!gguf)
    return damaged(log.last_line().empty() ? "its header does not parse" : log.last_line());
  const std::int64_t kind = gguf_find_key(gguf.get(), "general.architecture");
  if (kind < 0 || gguf_get_kv_type(gguf.get(), kind) != GGUF_TYPE_STRING ||
      std::string_view(gguf_get_val_str(gguf.get(), kind)) != kKind) {
    return fail(ErrorCode::kInvalidArgument, "'{}' is a GGUF file, but not a calibration", name);
  }
  return read_all(Reader(name, gguf.get(), tensors.get(), content));
}

Status save_calibration(const std::string& path, const Calibration& calibration) {
  KVSPAN_TRY(const auto bytes, encode_calibration(calibration));
  return write_file(path, bytes);
}

Result<Calibration> load_calibration(const Engine& engine, const std::string& path) {
  KVSPAN_TRY(const auto bytes, read_file(path));
  KVSPAN_TRY(Calibration calibration, decode_calibration(bytes, path));
  const std::string fingerprint = engine.fingerprint();
  if (calibration.fingerprint != fingerprint) {
    return fail(
        ErrorCode::kInvalidArgument,
        "calibration '{}' was made for the model '{}' with fingerprint {}; this is '{}' with "
        "fingerprint {} (kvspan calibrate makes its own)",
        path, calibration.model, calibration.fingerprint, engine.info().name, fingerprint);
  }
  if (Status status = check_calibration(engine.cache_shape(), calibration); !status) {
    return fail(ErrorCode::kCorruptData, "'{}': {}", path, status.error().message);
  }
  return calibration;
}

Result<std::string> calibration_path(const Engine& engine) {
  KVSPAN_TRY(const std::string folder, user_cache_folder());
  return fmt::format("{}/calibration/{}.gguf", folder, engine.fingerprint());
}

Result<std::optional<Calibration>> find_calibration(const Engine& engine) {
  KVSPAN_TRY(const std::string path, calibration_path(engine));
  Result<Calibration> loaded = load_calibration(engine, path);
  if (loaded) return std::optional<Calibration>(std::move(*loaded));
  // One that an earlier kvspan wrote is as good as none: making it anew replaces it.
  if (loaded.error().code == ErrorCode::kNotFound ||
      loaded.error().code == ErrorCode::kUnsupported) {
    return std::optional<Calibration>();
  }
  return std::move(loaded).error();
}

}  // namespace kvspan
