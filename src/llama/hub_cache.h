// SPDX-License-Identifier: Apache-2.0
// Models of Hugging Face that are on this machine, in the folder that llama.cpp and huggingface_hub
// share: found, listed and removed by llama.cpp's own functions. Fetching is io/models.h's.
#pragma once

#include <string>
#include <vector>

#include "kvspan/result.h"

namespace kvspan {

// Where they lie: HF_HUB_CACHE, HF_HOME or ~/.cache/huggingface/hub.
Result<std::string> hub_cache_folder();
// Whose files they are: HF_ENDPOINT, or Hugging Face itself. Ends in '/'.
std::string hub_endpoint();

// USER/REPO or USER/REPO:QUANT of all that are there.
Result<std::vector<std::string>> list_hub_models();
// The file of USER/REPO[:QUANT], or of `file` in it; "" when it is not there.
Result<std::string> find_hub_model(const std::string& model, const std::string& file = "");
// Removes the model, or without a quantization all of its repository. Fails with kNotFound when it
// is not there.
Status remove_hub_model(const std::string& model);

}  // namespace kvspan
