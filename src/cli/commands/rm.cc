// SPDX-License-Identifier: Apache-2.0
// kvspan rm: removes models that were fetched. Calibrations stay: they are small, and took longer.
#include "base/fail.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/model_path.h"
#include "cli/output/voice.h"
#include "io/models.h"
#include "llama/hub_cache.h"

namespace kvspan::cli {
namespace {

struct RmFlags {
  std::string name;
};

Result<int> remove(const RmFlags& flags) {
  if (flags.name.starts_with(kHubPrefix)) {
    KVSPAN_CHECK_OK(remove_hub_model(flags.name.substr(kHubPrefix.size())));
  } else {
    KVSPAN_CHECK_OK(remove_model(flags.name));
  }
  say(fmt::format("removed {}\n", flags.name));
  return 0;
}

}  // namespace

Action setup_rm(CLI::App& app) {
  auto flags = std::make_shared<RmFlags>();
  add_required(app, "name", flags->name, "Model to remove, as kvspan list names it", "NAME");
  set_footer(app,
             "Without a quantization all files of a Hugging Face repository go.\n"
             "Examples:\n"
             "  kvspan rm gemma3\n"
             "  kvspan rm hf:USER/REPO:Q4_K_M\n");
  return [flags] { return remove(*flags); };
}

}  // namespace kvspan::cli
