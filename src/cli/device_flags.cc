// SPDX-License-Identifier: Apache-2.0
#include "cli/device_flags.h"

#include <charconv>
#include <limits>

#include "base/fail.h"
#include "cli/flags.h"
#include "llama/engine.h"

namespace kvspan::cli {
namespace {

constexpr std::int32_t kAllLayers = std::numeric_limits<std::int32_t>::max();

std::string gpu_mistake(const std::string& text) {
  if (text == "all" || text == "auto") return {};
  std::int32_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stopped == end && number >= -2) return {};
  return fmt::format("'{}' is not allowed; allowed: a whole number, all, auto", text);
}

// What -ngl asks for; 0 where it is not given.
std::int32_t asked_layers(const std::string& text) {
  if (text.empty()) return 0;
  if (text == "all" || text == "auto" || text.starts_with('-')) return kAllLayers;
  std::int32_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

void add_device_flags(CLI::App& app, DeviceFlags& flags) {
  add_checked(app, "--gpu-layers,--n-gpu-layers", flags.gpu_layers,
              "-ngl: layers whose weights go to a GPU, where this was built for one", "N",
              gpu_mistake);
  add_choice(app, "--device", flags.device,
             "cuda: all layers on the GPU, or as many as -ngl says, and the cache too where the GPU "
             "has its recipe; cpu: none; default: as -ngl says",
             {"cpu", "cuda"});
}

Result<std::int32_t> DeviceFlags::layers() const {
  const std::int32_t asked = asked_layers(gpu_layers);
  if (device == "cuda") {
    if (!engine_has_cuda()) {
      return fail(ErrorCode::kUnsupported,
                  "--device cuda: built without CUDA: configure with -DKVSPAN_CUDA=ON (docs/guide/cuda.md)");
    }
    if (!engine_has_gpu()) {
      return fail(ErrorCode::kNotFound, "--device cuda: there is no CUDA device");
    }
    return gpu_layers.empty() ? kAllLayers : asked;
  }
  if (device == "cpu" && asked > 0) {
    return fail(ErrorCode::kInvalidArgument,
                "--device cpu with -ngl {}: no layer can be on a GPU then; allowed: -ngl 0",
                gpu_layers);
  }
  return engine_has_gpu() ? asked : 0;
}

std::string DeviceFlags::note() const {
  if (device == "cuda" || asked_layers(gpu_layers) == 0 || engine_has_gpu()) return "";
  return fmt::format(
      "kvspan: -ngl {}: {}, the processor computes all layers\n", gpu_layers,
      engine_has_cuda() ? "there is no GPU"
                        : "this was built without a GPU's library (-DKVSPAN_CUDA=ON)");
}

}  // namespace kvspan::cli
