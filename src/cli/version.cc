// SPDX-License-Identifier: Apache-2.0
// The KVSPAN_ names are this file's compile definitions, set by CMakeLists.txt beside it.
#include "cli/version.h"

#include <fmt/format.h>

#include "base/cpu_level.h"

namespace kvspan::cli {

std::string version_number() {
  return KVSPAN_VERSION;
}

std::string version_text() {
  const std::string_view commit = KVSPAN_COMMIT;
  std::vector<std::string_view> levels;
  for (const CpuLevel level : available_cpu_levels()) levels.push_back(name_of(level));
  return fmt::format(
      "kvspan {}{}\n"
      "ggml and libllama from llama-cpp-python {}\n"
      "CPU level {} (available: {})",
      KVSPAN_VERSION, commit.empty() ? "" : fmt::format(" (commit {})", commit),
      KVSPAN_ARCHIVE_VERSION, name_of(cpu_level()), fmt::join(levels, ", "));
}

}  // namespace kvspan::cli
