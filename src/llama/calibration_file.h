// SPDX-License-Identifier: Apache-2.0
// The calibration files of models that are open. A damaged file is an Error that names it and what
// is wrong with it, never a fault.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kvspan/calibration.h"
#include "llama/engine.h"

namespace kvspan {

// Written whole or not at all.
Status save_calibration(const std::string& path, const Calibration& calibration);

// The calibration of the engine's model from `path`. kNotFound when there is no such file,
// kInvalidArgument when it was made for another model, kCorruptData when it is damaged. `open`
// leaves the arrays of layers in the file, which stays open (Calibration::read_layer); `load` reads
// them.
Result<Calibration> open_calibration(const Engine& engine, const std::string& path);
Result<Calibration> load_calibration(const Engine& engine, const std::string& path);

// Where the calibration of the engine's model is kept: calibration/<fingerprint>.gguf in the user's
// cache folder, and <fingerprint>-<hash of the angles>.gguf where EngineOptions::rope changes them.
Result<std::string> calibration_path(const Engine& engine);
// From there, opened; empty when none has been made yet.
Result<std::optional<Calibration>> find_calibration(const Engine& engine);
// Which calibration a file holds, at the cost of reading its end (calibration_checksum).
Result<std::uint64_t> file_calibration_checksum(const std::string& path);
// The same for a model that need not be loaded, whose shape it is not held against
// (CacheFactory::create does).
Result<std::optional<Calibration>> find_calibration(const std::string& model_path);

}  // namespace kvspan
