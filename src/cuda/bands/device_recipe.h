// SPDX-License-Identifier: Apache-2.0
// Which recipes the device has, and what it needs to know of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/bands/bands_code.h"
#include "kvspan/cache.h"
#include "kvspan/result.h"

namespace kvspan {
struct Prepared;
}  // namespace kvspan

namespace kvspan::cuda {

struct DeviceRecipe {
  std::string text;  // canonical
  std::shared_ptr<const Prepared> prepared;  // what the host's caches are made from
  std::int32_t sink = 0, recent = 0;
  // By layer, one for each group of heads; none: rows stay as they came.
  std::vector<std::vector<std::shared_ptr<const BandsCode>>> codes;
};

// Fails on what CacheFactory::create refuses, and, naming method, key and what is allowed, on
// recipes that are not on the device.
Result<DeviceRecipe> device_recipe(const CacheShape& shape, std::string_view recipe,
                                   const Calibration* calibration);
// The same of a recipe that has been made ready.
Result<DeviceRecipe> device_recipe(std::shared_ptr<const Prepared> ready);

}  // namespace kvspan::cuda
