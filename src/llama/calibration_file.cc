// SPDX-License-Identifier: Apache-2.0
#include "llama/calibration_file.h"

#include <memory>
#include <span>

#include "base/byte_stream.h"
#include "base/fail.h"
#include "io/atomic_file.h"
#include "io/random_file.h"
#include "io/user_folders.h"
#include "llama/file_fingerprint.h"

namespace kvspan {
namespace {

Result<ByteSource> source_of(const std::string& path) {
  KVSPAN_TRY(RandomFile opened, RandomFile::open(path));
  const auto file = std::make_shared<const RandomFile>(std::move(opened));
  return ByteSource{path, file->bytes(), [file](std::size_t offset, std::span<std::byte> to) {
                      return file->read(offset, to);
                    }};
}

}  // namespace

Status save_calibration(const std::string& path, const Calibration& calibration) {
  KVSPAN_TRY(const auto bytes, encode_calibration(calibration));
  return write_file(path, bytes);
}

namespace {

// Of the model with that fingerprint, whose shape it is not held against.
Result<Calibration> open_for(const std::string& fingerprint, const std::string& model,
                             const std::string& path) {
  KVSPAN_TRY(ByteSource source, source_of(path));
  KVSPAN_TRY(Calibration calibration, open_calibration(std::move(source)));
  if (calibration.fingerprint != fingerprint) {
    return fail(
        ErrorCode::kInvalidArgument,
        "calibration '{}' was made for the model '{}' with fingerprint {}; this is '{}' with "
        "fingerprint {} (kvspan calibrate makes its own)",
        path, calibration.model, calibration.fingerprint, model, fingerprint);
  }
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

// Of angles that are not as the model's file says.
std::string angles_of(const Engine& engine) {
  if (engine.options().rope == RopeOptions()) return "";
  std::uint64_t sum = 0;
  for (const LayerShape& layer : engine.cache_shape().layers) {
    sum = crc64(std::as_bytes(std::span(layer.rope.angles)), sum);
    sum = crc64(std::as_bytes(std::span(&layer.rope.magnitude, 1)), sum);
  }
  return fmt::format("-{:016x}", sum);
}

Result<std::string> calibration_path(const Engine& engine) {
  return path_for(engine.fingerprint() + angles_of(engine));
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

Result<std::uint64_t> file_calibration_checksum(const std::string& path) {
  KVSPAN_TRY(const ByteSource source, source_of(path));
  return calibration_checksum(source);
}

}  // namespace kvspan
