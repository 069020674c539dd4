// SPDX-License-Identifier: Apache-2.0
#include "cli/calibration.h"

#include <optional>

#include "base/fail.h"
#include "cli/data_folder.h"
#include "cli/progress_bar.h"
#include "cli/text_input.h"
#include "io/atomic_file.h"

namespace kvspan::cli {

Result<std::string> calibration_text(const std::string& file) {
  std::string path = file;
  if (path.empty()) {
    KVSPAN_TRY(const std::string folder, data_folder());
    path = folder + "/text/calibration.txt";
  }
  KVSPAN_TRY(const auto bytes, read_file(path));
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  KVSPAN_CHECK_OK(check_text(text, path));
  return text;
}

Result<Calibration> calibration_for(Engine& engine) {
  std::optional<ProgressBar> bar;
  const auto text = [&]() -> Result<std::string> {
    fmt::print(stderr, "kvspan: {} has no calibration yet; making it once\n", engine.info().name);
    return calibration_text();
  };
  return ensure_calibration(engine, text, {}, [&](std::size_t done, std::size_t total) {
    if (!bar) bar.emplace("calibrating", "tokens", total);
    bar->update(done);
  });
}

Result<std::unique_ptr<KvCache>> new_cache(Engine& engine, const std::string& recipe) {
  KVSPAN_TRY(const bool needed, needs_calibration(recipe));
  std::optional<Calibration> calibration;
  if (needed) {
    KVSPAN_TRY(calibration, calibration_for(engine));
  }
  KVSPAN_TRY(
      const CacheFactory caches,
      CacheFactory::create(engine.cache_shape(), recipe, calibration ? &*calibration : nullptr));
  return caches.make();
}

}  // namespace kvspan::cli
