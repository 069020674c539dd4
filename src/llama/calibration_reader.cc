// SPDX-License-Identifier: Apache-2.0
#include "llama/calibration_reader.h"

#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <cstring>

#include "base/byte_stream.h"
#include "base/fail.h"
#include "base/half.h"
#include "llama/ggml_log.h"

namespace kvspan::detail {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 16;

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

template <class... Args>
Error damaged(const CalibrationBytes& bytes, fmt::format_string<Args...> text, Args&&... args) {
  return fail(ErrorCode::kCorruptData, "calibration '{}' is damaged: {}", bytes.name,
              fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace

void FreeGgml::operator()(gguf_context* gguf) const {
  gguf_free(gguf);
}

void FreeGgml::operator()(ggml_context* tensors) const {
  ggml_free(tensors);
}

std::string calibration_key(const char* name) {
  return fmt::format("kvspan.calibration.{}", name);
}

std::string tensor_name(std::size_t layer, const CalibrationArray& array) {
  return fmt::format("layer.{}.{}", layer, array.name);
}

Result<std::shared_ptr<const CalibrationReader>> CalibrationReader::open(CalibrationBytes bytes) {
  auto reader = std::shared_ptr<CalibrationReader>(new CalibrationReader(std::move(bytes)));
  KVSPAN_CHECK_OK(reader->check_sum());
  KVSPAN_CHECK_OK(reader->parse());
  KVSPAN_CHECK_OK(reader->read_header());
  return std::shared_ptr<const CalibrationReader>(std::move(reader));
}

Status CalibrationReader::check_sum() const {
  std::vector<std::byte> piece(std::min(kPiece, bytes_.size));
  if (bytes_.size < 24 + kChecksumBytes) {
    return damaged(bytes_, "it does not start as a GGUF file");
  }
  const std::size_t end = bytes_.size - kChecksumBytes;
  std::uint64_t sum = 0, wanted = 0;
  for (std::size_t at = 0; at < end; at += kPiece) {
    const auto now = std::span(piece).first(std::min(kPiece, end - at));
    KVSPAN_CHECK_OK(bytes_.read(at, now));
    if (at == 0 && std::memcmp(now.data(), "GGUF", 4) != 0) {
      return damaged(bytes_, "it does not start as a GGUF file");
    }
    sum = crc64(now, sum);
  }
  KVSPAN_CHECK_OK(bytes_.read(end, std::as_writable_bytes(std::span(&wanted, 1))));
  if (sum == wanted) return {};
  return damaged(bytes_, "its checksum differs (the file was cut off or changed)");
}

Status CalibrationReader::parse() {
  content_ = bytes_.size - kChecksumBytes;
  GgmlLogCapture log;
  const std::unique_ptr<std::FILE, Close> file(bytes_.stream());
  if (!file) return fail(ErrorCode::kIo, "cannot read calibration '{}' as a stream", bytes_.name);
  ggml_context* tensors = nullptr;
  gguf_.reset(gguf_init_from_file_ptr(file.get(), {/*no_alloc=*/true, &tensors}));
  tensors_.reset(tensors);
  if (!gguf_) {
    return damaged(bytes_, "{}", log.reason().empty() ? "its header does not parse" : log.reason());
  }
  const std::int64_t kind = gguf_find_key(gguf_.get(), "general.architecture");
  if (kind < 0 || gguf_get_kv_type(gguf_.get(), kind) != GGUF_TYPE_STRING ||
      std::string_view(gguf_get_val_str(gguf_.get(), kind)) != kCalibrationKind) {
    return fail(ErrorCode::kInvalidArgument, "'{}' is a GGUF file, but not a calibration",
                bytes_.name);
  }
  return {};
}

Result<std::int64_t> CalibrationReader::find(const char* what, int type, bool array) const {
  const std::string key = calibration_key(what);
  const std::int64_t id = gguf_find_key(gguf_.get(), key.c_str());
  if (id < 0) return damaged(bytes_, "the key {} is missing", key);
  const gguf_type found = gguf_get_kv_type(gguf_.get(), id);
  const bool fits = array ? found == GGUF_TYPE_ARRAY && gguf_get_arr_type(gguf_.get(), id) == type
                          : found == type;
  if (!fits) return damaged(bytes_, "the key {} is {}", key, gguf_type_name(found));
  return id;
}

template <class T>
Result<std::vector<T>> CalibrationReader::numbers(const char* what, int type) const {
  KVSPAN_TRY(const std::int64_t id, find(what, type, true));
  const auto* data = static_cast<const T*>(gguf_get_arr_data(gguf_.get(), id));
  return std::vector<T>(data, data + gguf_get_arr_n(gguf_.get(), id));
}

Result<std::vector<float>> CalibrationReader::array(std::size_t layer,
                                                    const CalibrationArray& array) const {
  const std::string tensor = tensor_name(layer, array);
  const std::int64_t id = gguf_find_tensor(gguf_.get(), tensor.c_str());
  if (id < 0) return damaged(bytes_, "the tensor {} is missing", tensor);
  const ggml_type type = gguf_get_tensor_type(gguf_.get(), id);
  if (type != (array.half ? GGML_TYPE_F16 : GGML_TYPE_F32)) {
    return damaged(bytes_, "the tensor {} is of type {}", tensor, ggml_type_name(type));
  }
  const std::size_t size = gguf_get_tensor_size(gguf_.get(), id);
  const std::size_t start = gguf_get_data_offset(gguf_.get());
  const std::size_t offset = gguf_get_tensor_offset(gguf_.get(), id);
  if (start > content_ || offset > content_ - start || size > content_ - start - offset) {
    return damaged(bytes_, "the tensor {} ends beyond the file", tensor);
  }
  const auto count =
      static_cast<std::size_t>(ggml_nelements(ggml_get_tensor(tensors_.get(), tensor.c_str())));
  std::vector<float> numbers(count);
  if (!array.half) {
    KVSPAN_CHECK_OK(bytes_.read(start + offset, std::as_writable_bytes(std::span(numbers))));
    return numbers;
  }
  std::vector<Half> narrow(count);
  KVSPAN_CHECK_OK(bytes_.read(start + offset, std::as_writable_bytes(std::span(narrow))));
  std::transform(narrow.begin(), narrow.end(), numbers.begin(),
                 [](Half number) { return to_float(number); });
  return numbers;
}

Status CalibrationReader::read_header() {
  Calibration& out = header_;
  const gguf_context* gguf = gguf_.get();
  KVSPAN_TRY(const std::int64_t version, find("version", GGUF_TYPE_UINT32));
  if (gguf_get_val_u32(gguf, version) != kCalibrationVersion) {
    return fail(ErrorCode::kUnsupported,
                "calibration '{}' is of version {}, this kvspan reads version {} (kvspan calibrate "
                "makes it anew)",
                bytes_.name, gguf_get_val_u32(gguf, version), kCalibrationVersion);
  }
  KVSPAN_TRY(const std::int64_t model, find("model", GGUF_TYPE_STRING));
  KVSPAN_TRY(const std::int64_t fingerprint, find("fingerprint", GGUF_TYPE_STRING));
  KVSPAN_TRY(const std::int64_t tokens, find("tokens", GGUF_TYPE_INT64));
  KVSPAN_TRY(const std::int64_t window, find("window", GGUF_TYPE_INT32));
  KVSPAN_TRY(const std::int64_t skip, find("skip", GGUF_TYPE_INT32));
  KVSPAN_TRY(const std::int64_t layers, find("layers", GGUF_TYPE_UINT32));
  out.model = gguf_get_val_str(gguf, model);
  out.fingerprint = gguf_get_val_str(gguf, fingerprint);
  out.tokens = gguf_get_val_i64(gguf, tokens);
  out.window = gguf_get_val_i32(gguf, window);
  out.skip = gguf_get_val_i32(gguf, skip);
  const std::size_t count = gguf_get_val_u32(gguf, layers);
  KVSPAN_TRY(out.sample_positions, numbers<std::int32_t>("sample_positions", GGUF_TYPE_INT32));
  KVSPAN_TRY(const auto energy, numbers<double>("residual_energy", GGUF_TYPE_FLOAT64));
  KVSPAN_TRY(const auto key_weight, numbers<float>("key_weight", GGUF_TYPE_FLOAT32));
  KVSPAN_TRY(const auto value_weight, numbers<float>("value_weight", GGUF_TYPE_FLOAT32));
  if (energy.size() != count || key_weight.size() != count || value_weight.size() != count) {
    return damaged(bytes_, "{} layers, but {} energies and {} and {} weights", count, energy.size(),
                   key_weight.size(), value_weight.size());
  }
  KVSPAN_TRY(const auto rates, numbers<float>("rates", GGUF_TYPE_FLOAT32));
  for (std::size_t i = 0; i + 2 < rates.size(); i += 3) {
    out.rates.push_back({rates[i], rates[i + 1], rates[i + 2]});
  }
  out.layers.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    out.layers[i].residual_energy = energy[i];
    out.layers[i].key_weight = key_weight[i];
    out.layers[i].value_weight = value_weight[i];
  }
  return {};
}

Result<LayerCalibration> CalibrationReader::layer(std::size_t index) const {
  LayerCalibration layer = header_.layers[index];
  for (const CalibrationArray& array : kCalibrationArrays) {
    KVSPAN_TRY(layer.*array.numbers, this->array(index, array));
  }
  return layer;
}

}  // namespace kvspan::detail
