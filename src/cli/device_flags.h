// SPDX-License-Identifier: Apache-2.0
// Where a model is computed: -ngl as llama.cpp has it, and --device.
#pragma once

#include <cstdint>
#include <string>

#include "kvspan/result.h"

namespace CLI {
class App;
}  // namespace CLI

namespace kvspan::cli {

struct DeviceFlags {
  std::string gpu_layers;  // "": not given; a number, "all" or "auto"
  std::string device;      // "": not given; "cpu" or "cuda"

  // Layers for the GPU. Fails where --device asks for one that is not there, or -ngl for layers of
  // none.
  Result<std::int32_t> layers() const;
  // A line where -ngl changes nothing; else "".
  std::string note() const;
};
// -ngl, --device
void add_device_flags(CLI::App& app, DeviceFlags& flags);

}  // namespace kvspan::cli
