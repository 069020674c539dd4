// SPDX-License-Identifier: Apache-2.0
#include "llama/hub_cache.h"

#include <common.h>
#include <download.h>
#include <hf-cache.h>

#include <filesystem>

#include "base/fail.h"
#include "llama/ggml_log.h"

namespace kvspan {
namespace {

// What llama.cpp says by exceptions: a name that is none, a folder that cannot be read.
template <class Function>
auto guarded(const std::string& what, Function function) -> Result<decltype(function())> {
  silence_ggml();
  try {
    return function();
  } catch (const std::exception& failure) {
    return fail(ErrorCode::kInvalidArgument, "{}: {}", what, failure.what());
  }
}

}  // namespace

Result<std::string> hub_cache_folder() {
  return guarded("the folder of Hugging Face models", [] { return hf_cache::get_cache_path(); });
}

std::string hub_endpoint() {
  return common_get_model_endpoint();
}

Result<std::vector<std::string>> list_hub_models() {
  return guarded("models of Hugging Face", [] {
    std::vector<std::string> names;
    for (const auto& model : common_list_cached_models()) names.push_back(model.to_string());
    return names;
  });
}

Result<std::string> find_hub_model(const std::string& model, const std::string& file) {
  return guarded(model, [&] {
    std::string path = common_download_resolve_path(model, file);
    std::error_code ignored;
    // A link whose file was removed is no model.
    return std::filesystem::exists(path, ignored) ? path : std::string();
  });
}

Status remove_hub_model(const std::string& model) {
  KVSPAN_TRY(const bool removed, guarded(model, [&] { return common_download_remove(model); }));
  if (removed) return {};
  return fail(ErrorCode::kNotFound, "'{}' is not here (kvspan list shows what is)", model);
}

}  // namespace kvspan
