// SPDX-License-Identifier: Apache-2.0
// What -m and -hf mean.
#pragma once

#include <string>
#include <string_view>

#include "kvspan/result.h"

namespace kvspan::cli {

// What a model's name begins with where Hugging Face has it: "hf:USER/REPO:QUANT", and with one
// file of the repository "hf:USER/REPO#FILE". -hf writes names like this.
inline constexpr std::string_view kHubPrefix = "hf:";

// The file of a model named by -m. An unknown name is answered with the nearest known one. A model
// of Hugging Face that is not here yet is fetched.
Result<std::string> find_model_path(const std::string& name_or_path);

// Fetches "hf:..." unless it is here and not wanted `again`.
Result<std::string> fetch_hub_model(const std::string& name, bool again = false);

}  // namespace kvspan::cli
