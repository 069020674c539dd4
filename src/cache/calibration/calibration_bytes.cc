// SPDX-License-Identifier: Apache-2.0
// Calibrations as bytes: docs/reference/formats/calibration.md. The header is parsed once, arrays
// of layers are read when they are asked for.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "base/byte_stream.h"
#include "base/fail.h"
#include "base/half.h"
#include "cache/calibration/array_sizes.h"
#include "cache/calibration/gguf_form.h"
#include "cache/rope.h"
#include "kvspan/calibration.h"

namespace kvspan {
namespace {

using detail::GgufHeader;
using detail::GgufNumber;
using detail::GgufTensor;

constexpr std::uint32_t kVersion = 6;
constexpr std::string_view kKind = "kvspan-calibration";  // general.architecture
constexpr std::size_t kChecksumBytes = sizeof(std::uint64_t);

std::string key_of(std::string_view name) {
  return fmt::format("kvspan.calibration.{}", name);
}

// An array of every layer, in the order of the file.
struct LayerArray {
  const char* name;
  std::vector<float> LayerCalibration::*numbers;
  GgufNumber number;
};
constexpr std::array kArrays{
    LayerArray{"key_mean", &LayerCalibration::key_mean, GgufNumber::kF32},
    LayerArray{"value_mean", &LayerCalibration::value_mean, GgufNumber::kF32},
    LayerArray{"joint_moment", &LayerCalibration::joint_moment, GgufNumber::kF32},
    LayerArray{"rotated_key_mean", &LayerCalibration::rotated_key_mean, GgufNumber::kF32},
    LayerArray{"rotated_key_moment", &LayerCalibration::rotated_key_moment, GgufNumber::kF32},
    LayerArray{"query_moment", &LayerCalibration::query_moment, GgufNumber::kF32},
    LayerArray{"raw_query_moment", &LayerCalibration::raw_query_moment, GgufNumber::kF32},
    LayerArray{"key_metric", &LayerCalibration::key_metric, GgufNumber::kF32},
    LayerArray{"value_metric", &LayerCalibration::value_metric, GgufNumber::kF32},
    LayerArray{"output_metric", &LayerCalibration::output_metric, GgufNumber::kF32},
    LayerArray{"sample_rows", &LayerCalibration::sample_rows, GgufNumber::kF16},
    LayerArray{"key_residuals", &LayerCalibration::key_residuals, GgufNumber::kF32},
    LayerArray{"value_residuals", &LayerCalibration::value_residuals, GgufNumber::kF32},
};

std::string tensor_name(std::size_t layer, const LayerArray& array) {
  return fmt::format("layer.{}.{}", layer, array.name);
}
std::string cross_moment_name(std::size_t layer, std::size_t following) {
  return fmt::format("layer.{}.cross_moment.{}", layer, following);
}

template <class... Args>
Error damaged(const ByteSource& source, fmt::format_string<Args...> text, Args&&... args) {
  return fail(ErrorCode::kCorruptData, "calibration '{}' is damaged: {}", source.name,
              fmt::format(text, std::forward<Args>(args)...));
}

// The checksum at the end, once it has been held against all bytes before it, a piece at a time.
Result<std::uint64_t> check_sum(const ByteSource& source) {
  constexpr std::size_t kPiece = std::size_t{1} << 16;
  if (source.size < 24 + kChecksumBytes) return damaged(source, "it ends within its header");
  std::vector<std::byte> piece(std::min(kPiece, source.size));
  const std::size_t end = source.size - kChecksumBytes;
  std::uint64_t sum = 0, wanted = 0;
  for (std::size_t at = 0; at < end; at += kPiece) {
    const auto now = std::span(piece).first(std::min(kPiece, end - at));
    KVSPAN_CHECK_OK(source.read(at, now));
    if (at == 0 && std::memcmp(now.data(), "GGUF", 4) != 0) {
      return damaged(source, "it does not start as a GGUF file");
    }
    sum = crc64(now, sum);
  }
  KVSPAN_CHECK_OK(source.read(end, std::as_writable_bytes(std::span(&wanted, 1))));
  if (sum == wanted) return sum;
  return damaged(source, "its checksum differs (the file was cut off or changed)");
}

class Reader {
 public:
  static Result<std::shared_ptr<const Reader>> open(ByteSource source) {
    auto reader = std::shared_ptr<Reader>(new Reader(std::move(source)));
    KVSPAN_TRY(reader->calibration_.checksum, check_sum(reader->source_));
    auto header = GgufHeader::read(reader->source_, reader->source_.size - kChecksumBytes);
    if (!header) return damaged(reader->source_, "{}", header.error().message);
    reader->header_ = std::move(*header);
    KVSPAN_CHECK_OK(reader->read_header());
    return std::shared_ptr<const Reader>(std::move(reader));
  }

  // All but the arrays of its layers.
  const Calibration& calibration() const noexcept { return calibration_; }

  Result<LayerCalibration> layer(std::size_t index) const {
    LayerCalibration layer = calibration_.layers[index];
    for (const LayerArray& array : kArrays) {
      KVSPAN_TRY(layer.*array.numbers, read(tensor_name(index, array), array.number));
    }
    layer.cross_moments.resize(
        following_layers(calibration_.neighbours, index, calibration_.layers.size()));
    for (std::size_t j = 0; j < layer.cross_moments.size(); ++j) {
      KVSPAN_TRY(layer.cross_moments[j], read(cross_moment_name(index, j), GgufNumber::kF32));
    }
    return layer;
  }

 private:
  explicit Reader(ByteSource source) : source_(std::move(source)) {}

  Error no_key(std::string_view name) const {
    const std::string key = key_of(name);
    return damaged(source_, "the key {} is {}", key,
                   header_.has(key) ? "of another type" : "missing");
  }
  template <class T>
  Result<T> number(std::string_view name) const {
    if (const T* found = header_.number<T>(key_of(name))) return *found;
    return no_key(name);
  }
  template <class T>
  Result<std::vector<T>> numbers(std::string_view name) const {
    std::vector<T> to;
    if (header_.numbers(key_of(name), to)) return to;
    return no_key(name);
  }
  Result<std::string> text(std::string_view name) const {
    if (const std::string* found = header_.text(key_of(name))) return *found;
    return no_key(name);
  }

  Status read_header() {
    const std::string* kind = header_.text("general.architecture");
    if (kind == nullptr || *kind != kKind) {
      return fail(ErrorCode::kInvalidArgument, "'{}' is a GGUF file, but not a calibration",
                  source_.name);
    }
    KVSPAN_TRY(const auto version, number<std::uint32_t>("version"));
    if (version != kVersion) {
      return fail(ErrorCode::kUnsupported,
                  "calibration '{}' is of version {}, this kvspan reads version {} (kvspan "
                  "calibrate makes it anew)",
                  source_.name, version, kVersion);
    }
    Calibration& out = calibration_;
    KVSPAN_TRY(out.model, text("model"));
    KVSPAN_TRY(out.fingerprint, text("fingerprint"));
    KVSPAN_TRY(out.tokens, number<std::int64_t>("tokens"));
    KVSPAN_TRY(out.window, number<std::int32_t>("window"));
    KVSPAN_TRY(out.skip, number<std::int32_t>("skip"));
    KVSPAN_TRY(const auto neighbours, number<std::uint32_t>("neighbours"));
    if (!std::in_range<std::int32_t>(neighbours)) {
      return damaged(source_, "the key {} is {}; allowed: up to {}", key_of("neighbours"),
                     neighbours, std::numeric_limits<std::int32_t>::max());
    }
    out.neighbours = static_cast<std::int32_t>(neighbours);
    KVSPAN_TRY(const auto count, number<std::uint32_t>("layers"));
    KVSPAN_TRY(out.sample_positions, numbers<std::int32_t>("sample_positions"));
    KVSPAN_TRY(const auto energy, numbers<double>("residual_energy"));
    KVSPAN_TRY(const auto key_weight, numbers<float>("key_weight"));
    KVSPAN_TRY(const auto value_weight, numbers<float>("value_weight"));
    if (energy.size() != count || key_weight.size() != count || value_weight.size() != count) {
      return damaged(source_, "{} layers, but {} energies and {} and {} weights", count,
                     energy.size(), key_weight.size(), value_weight.size());
    }
    KVSPAN_TRY(const auto rates, numbers<float>("rates"));
    for (std::size_t i = 0; i + 2 < rates.size(); i += 3) {
      out.rates.push_back({rates[i], rates[i + 1], rates[i + 2]});
    }
    out.layers.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      out.layers[i].residual_energy = energy[i];
      out.layers[i].key_weight = key_weight[i];
      out.layers[i].value_weight = value_weight[i];
    }
    // Earlier files have none of these keys.
    for (const char* name : {"rope_pairs", "rope_dims", "rope_magnitude", "rope_angles"}) {
      if (header_.has(key_of(name))) return read_ropes();
    }
    return {};
  }

  Status read_ropes() {
    KVSPAN_TRY(const auto pairs, numbers<std::uint32_t>("rope_pairs"));
    KVSPAN_TRY(const auto dims, numbers<std::uint32_t>("rope_dims"));
    KVSPAN_TRY(const auto magnitudes, numbers<float>("rope_magnitude"));
    KVSPAN_TRY(const auto angles, numbers<double>("rope_angles"));
    const std::size_t count = calibration_.layers.size();
    if (pairs.size() != count || dims.size() != count || magnitudes.size() != count) {
      return damaged(source_, "{} layers, but {} pairs, {} dimensions and {} magnitudes of RoPE",
                     count, pairs.size(), dims.size(), magnitudes.size());
    }
    auto left = std::span(angles);
    for (std::size_t i = 0; i < count; ++i) {
      if (pairs[i] > 1 || dims[i] % 2 != 0 || dims[i] / 2 > left.size()) {
        return damaged(source_,
                       "RoPE of layer {} has pairs of kind {} and {} dimensions; allowed: 0 or 1, "
                       "and an even number up to {}, for which there are angles",
                       i, pairs[i], dims[i], 2 * left.size());
      }
      const auto own = left.first(dims[i] / 2);
      left = left.subspan(own.size());
      calibration_.ropes.push_back({static_cast<Rope::Pairs>(pairs[i]),
                                    static_cast<std::int32_t>(dims[i]),
                                    {own.begin(), own.end()},
                                    magnitudes[i]});
      if (Status fine = check_rope(calibration_.ropes[i], static_cast<std::int32_t>(dims[i]));
          !fine) {
        return damaged(source_, "layer {}: {}", i, fine.error().message);
      }
    }
    if (left.empty()) return {};
    return damaged(source_, "{} angles of RoPE for {} pairs", angles.size(),
                   angles.size() - left.size());
  }

  Result<std::vector<float>> read(const std::string& name, GgufNumber number) const {
    const GgufTensor* tensor = header_.tensor(name);
    if (tensor == nullptr) return damaged(source_, "the tensor {} is missing", name);
    if (tensor->number != number) {
      return damaged(source_, "the tensor {} is of another type", name);
    }
    std::vector<float> numbers(tensor->numbers);
    if (number == GgufNumber::kF32) {
      KVSPAN_CHECK_OK(source_.read(tensor->offset, std::as_writable_bytes(std::span(numbers))));
      return numbers;
    }
    std::vector<Half> narrow(tensor->numbers);
    KVSPAN_CHECK_OK(source_.read(tensor->offset, std::as_writable_bytes(std::span(narrow))));
    std::transform(narrow.begin(), narrow.end(), numbers.begin(),
                   [](Half half) { return to_float(half); });
    return numbers;
  }

  ByteSource source_;
  GgufHeader header_;
  Calibration calibration_;
};

void put_header(const Calibration& calibration, detail::GgufWriter& out) {
  out.put_text("general.architecture", kKind);
  out.put_number(key_of("version"), kVersion);
  out.put_text(key_of("model"), calibration.model);
  out.put_text(key_of("fingerprint"), calibration.fingerprint);
  out.put_number(key_of("tokens"), calibration.tokens);
  out.put_number(key_of("window"), calibration.window);
  out.put_number(key_of("skip"), calibration.skip);
  out.put_number(key_of("neighbours"), static_cast<std::uint32_t>(calibration.neighbours));
  out.put_number(key_of("layers"), static_cast<std::uint32_t>(calibration.layers.size()));
  out.put_numbers(key_of("sample_positions"), std::span(calibration.sample_positions));
  std::vector<double> energy;
  std::vector<float> key_weight, value_weight, rates;
  for (const LayerCalibration& layer : calibration.layers) {
    energy.push_back(layer.residual_energy);
    key_weight.push_back(layer.key_weight);
    value_weight.push_back(layer.value_weight);
  }
  for (const RatePoint& point : calibration.rates) {
    rates.insert(rates.end(), {point.bits, point.kl, point.loss});
  }
  out.put_numbers(key_of("residual_energy"), std::span<const double>(energy));
  out.put_numbers(key_of("key_weight"), std::span<const float>(key_weight));
  out.put_numbers(key_of("value_weight"), std::span<const float>(value_weight));
  out.put_numbers(key_of("rates"), std::span<const float>(rates));
  if (calibration.ropes.empty()) return;
  std::vector<std::uint32_t> pairs, dims;
  std::vector<float> magnitudes;
  std::vector<double> angles;
  for (const Rope& rope : calibration.ropes) {
    pairs.push_back(static_cast<std::uint32_t>(rope.pairs));
    dims.push_back(static_cast<std::uint32_t>(rope.rotated_dims));
    magnitudes.push_back(rope.magnitude);
    angles.insert(angles.end(), rope.angles.begin(), rope.angles.end());
  }
  out.put_numbers(key_of("rope_pairs"), std::span<const std::uint32_t>(pairs));
  out.put_numbers(key_of("rope_dims"), std::span<const std::uint32_t>(dims));
  out.put_numbers(key_of("rope_magnitude"), std::span<const float>(magnitudes));
  out.put_numbers(key_of("rope_angles"), std::span<const double>(angles));
}

void put_array(const std::vector<float>& numbers, GgufNumber number, std::byte* to) {
  if (number == GgufNumber::kF32) {
    if (!numbers.empty()) std::memcpy(to, numbers.data(), numbers.size() * sizeof(float));
    return;
  }
  for (const float wide : numbers) {
    const Half narrow = to_half(wide);
    std::memcpy(to, &narrow.bits, sizeof narrow.bits);
    to += sizeof narrow.bits;
  }
}

// An array as the file has it.
struct NamedArray {
  std::string name;
  const std::vector<float>* numbers;
  GgufNumber number;
};
// All arrays of all layers, in the order of the file.
std::vector<NamedArray> arrays_of(const Calibration& calibration) {
  std::vector<NamedArray> arrays;
  for (std::size_t i = 0; i < calibration.layers.size(); ++i) {
    const LayerCalibration& layer = calibration.layers[i];
    for (const LayerArray& array : kArrays) {
      arrays.push_back({tensor_name(i, array), &(layer.*array.numbers), array.number});
    }
    for (std::size_t j = 0; j < layer.cross_moments.size(); ++j) {
      arrays.push_back({cross_moment_name(i, j), &layer.cross_moments[j], GgufNumber::kF32});
    }
  }
  return arrays;
}

}  // namespace

Result<std::vector<std::byte>> encode_calibration(const Calibration& calibration) {
  if (calibration.read_layer) {
    return fail(ErrorCode::kInvalidArgument,
                "the layers of a calibration to write are in a file; allowed: read_whole() first");
  }
  try {
    detail::GgufWriter header;
    put_header(calibration, header);
    const std::vector<NamedArray> arrays = arrays_of(calibration);
    for (const NamedArray& array : arrays) {
      header.put_tensor(array.name, array.numbers->size(), array.number);
    }
    std::vector<std::size_t> offsets;
    std::vector<std::byte> bytes = header.finish(offsets);
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      put_array(*arrays[i].numbers, arrays[i].number, bytes.data() + offsets[i]);
    }
    const std::uint64_t checksum = crc64(bytes);
    const auto end = std::as_bytes(std::span(&checksum, 1));
    bytes.insert(bytes.end(), end.begin(), end.end());
    return bytes;
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory for the bytes of a calibration");
  }
}

Result<Calibration> open_calibration(ByteSource source) {
  try {
    const std::string name = source.name;
    KVSPAN_TRY(const auto reader, Reader::open(std::move(source)));
    Calibration calibration = reader->calibration();
    calibration.source = name;
    calibration.read_layer = [reader](std::size_t layer) { return reader->layer(layer); };
    return calibration;
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory to read a calibration");
  }
}

Result<Calibration> decode_calibration(std::span<const std::byte> bytes, const std::string& name) {
  ByteSource source{name, bytes.size(), nullptr};
  source.read = [bytes](std::size_t offset, std::span<std::byte> to) -> Status {
    if (!to.empty()) std::memcpy(to.data(), bytes.data() + offset, to.size());
    return {};
  };
  KVSPAN_TRY(Calibration calibration, open_calibration(std::move(source)));
  try {
    for (std::size_t i = 0; i < calibration.layers.size(); ++i) {
      KVSPAN_TRY(calibration.layers[i], calibration.read_layer(i));
    }
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory to read a calibration");
  }
  calibration.read_layer = nullptr;
  return calibration;
}

Result<std::uint64_t> calibration_checksum(const ByteSource& source) {
  std::uint64_t sum = 0;
  if (source.size < kChecksumBytes) return damaged(source, "it ends within its checksum");
  KVSPAN_CHECK_OK(
      source.read(source.size - kChecksumBytes, std::as_writable_bytes(std::span(&sum, 1))));
  return sum;
}

}  // namespace kvspan
