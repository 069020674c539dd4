// SPDX-License-Identifier: Apache-2.0
// Calibrations as files: docs/reference/formats/calibration.md. A damaged file is an Error that
// names it and what is wrong with it, never a fault; a file appears complete or not at all.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvspan/calibration.h"
#include "llama/engine.h"

namespace kvspan {

// The bytes of the file. Fails only for lack of memory.
Result<std::vector<std::byte>> encode_calibration(const Calibration& calibration);
// `name` stands in errors for where the bytes came from. What is read fits together, but has not
// been held against a model's shape (check_calibration).
Result<Calibration> decode_calibration(std::span<const std::byte> bytes, const std::string& name);

Status save_calibration(const std::string& path, const Calibration& calibration);

// The calibration of the engine's model from `path`. kNotFound when there is no such file,
// kInvalidArgument when it was made for another model, kCorruptData when it is damaged. `open`
// leaves the arrays of layers in the file, which stays open (Calibration::read_layer); `load` reads
// them.
Result<Calibration> open_calibration(const Engine& engine, const std::string& path);
Result<Calibration> load_calibration(const Engine& engine, const std::string& path);

// Where the calibration of the engine's model is kept: calibration/<fingerprint>.gguf in the user's
// cache folder.
Result<std::string> calibration_path(const Engine& engine);
// From there, opened; empty when none has been made yet.
Result<std::optional<Calibration>> find_calibration(const Engine& engine);
// The same for a model that need not be loaded, whose shape it is not held against
// (CacheFactory::create does).
Result<std::optional<Calibration>> find_calibration(const std::string& model_path);

}  // namespace kvspan
