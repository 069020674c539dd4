// SPDX-License-Identifier: Apache-2.0
// Gathers a model's Calibration from text: one pass of the model with an exact cache.
// Cost: a prefill of the text, and a few per cent more for the sums; with moments between layers up
// to a fifth more where the model is small.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvspan/calibration.h"
#include "llama/calibration_file.h"
#include "llama/engine.h"

namespace kvspan {

struct CalibrateOptions {
  std::int64_t tokens = 32768;  // of the text to read at most
  std::int32_t window = 4096;   // or the model's context, if that is smaller
  std::int32_t skip = 32;       // or a quarter of a window shorter than 128
  std::int64_t samples = 1024;
  // Following layers that each layer has moments with; empty: default_neighbours.
  std::optional<std::int32_t> neighbours;
};

// 2; 0 where a layer's keys and values have more than 1,024 numbers for a token: each neighbour
// takes the square of that in every layer.
std::int32_t default_neighbours(const CacheShape& shape) noexcept;

using TokenProgress = std::function<void(std::size_t done, std::size_t total)>;

// From windows of tokens, each a sequence of its own and within the model's context;
// `options.window` and `options.skip` are taken as they are. At least one window is longer than
// skip. Stops with kCancelled when the engine's cancel flag is set. The engine has no observer
// afterwards.
Result<Calibration> gather_calibration(Engine& engine, std::span<const std::vector<Token>> windows,
                                       const CalibrateOptions& options,
                                       const TokenProgress& progress = nullptr);

// What a calibration from text reads: the options with window, skip and neighbours fitted to the
// model, and the windows.
struct CalibrationPlan {
  CalibrateOptions options;
  std::vector<std::vector<Token>> windows;

  // Whether `calibration` could be of these windows: as many tokens, of such windows, and as many
  // neighbours.
  bool fits(const Calibration& calibration) const;
};
Result<CalibrationPlan> plan_calibration(const Engine& engine, const std::string& text,
                                         const CalibrateOptions& options);

// gather_calibration of that.
Result<Calibration> calibrate_on_text(Engine& engine, const std::string& text,
                                      const CalibrateOptions& options,
                                      const TokenProgress& progress = nullptr);

// The model's calibration from the user's cache folder, made and saved there when there is none:
// `text` is called for what to read, `progress` while that is read, `complete` to add what is known
// otherwise before it is saved. Nothing half-written stays when it fails or is cancelled. The
// arrays of its layers are in the file (Calibration::read_layer).
Result<Calibration> ensure_calibration(
    Engine& engine, const std::function<Result<std::string>()>& text,
    const CalibrateOptions& options = {}, const TokenProgress& progress = nullptr,
    const std::function<Status(Calibration&)>& complete = nullptr);

}  // namespace kvspan
