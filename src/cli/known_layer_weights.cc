// SPDX-License-Identifier: Apache-2.0
#include "cli/known_layer_weights.h"

#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "cli/data_folder.h"
#include "io/atomic_file.h"

namespace kvspan::cli {

Result<bool> take_known_layer_weights(Calibration& calibration) {
  KVSPAN_TRY(const std::string folder, data_folder());
  const std::string path = folder + "/calibration/layer_weights.json";
  KVSPAN_TRY(const auto bytes, read_file(path));
  try {
    const auto file =
        nlohmann::json::parse(reinterpret_cast<const char*>(bytes.data()),
                              reinterpret_cast<const char*>(bytes.data()) + bytes.size());
    for (const auto& model : file.at("models")) {
      if (model.at("fingerprint") != calibration.fingerprint) continue;
      const auto keys = model.at("key_weights").get<std::vector<float>>();
      const auto values = model.at("value_weights").get<std::vector<float>>();
      if (keys.size() != calibration.layers.size() || values.size() != keys.size()) {
        return fail(ErrorCode::kCorruptData, "'{}': {} and {} weights for {} with {} layers", path,
                    keys.size(), values.size(), calibration.model, calibration.layers.size());
      }
      for (std::size_t i = 0; i < keys.size(); ++i) {
        calibration.layers[i].key_weight = keys[i];
        calibration.layers[i].value_weight = values[i];
      }
      for (const auto& point : model.at("rates")) {
        calibration.rates.push_back({point.at("bits"), point.at("kl"), point.at("loss")});
      }
      return true;
    }
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::kCorruptData, "'{}': {}", path, error.what());
  }
  return false;
}

}  // namespace kvspan::cli
