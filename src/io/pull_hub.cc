// SPDX-License-Identifier: Apache-2.0
#include "io/pull_hub.h"

#include <vector>

#include "base/fail.h"
#include "io/embedded.h"
#include "io/process.h"

namespace kvspan {

Result<std::string> pull_hub_model(const HubModel& model) {
  std::vector<std::string> command = {"python3",  "-c",         detail::kHubScript,
                                      model.name, "--endpoint", model.endpoint,
                                      "--cache",  model.folder, "--machine"};
  if (!model.file.empty()) command.insert(command.end(), {"--file", model.file});
  if (!model.progress.empty()) command.insert(command.end(), {"--progress", model.progress});
  auto run = run_process(command);
  if (!run && run.error().code == ErrorCode::kNotFound) {
    return fail(ErrorCode::kNotFound, "python3 is needed to fetch models and is not installed");
  }
  KVSPAN_TRY(const ProcessEnd end, std::move(run));
  std::string line = end.output;
  while (line.ends_with('\n')) line.pop_back();
  line.erase(0, line.rfind('\n') + 1);
  if (end.exit_code == 0) return line;
  if (line.empty()) line = fmt::format("python3 ended with {}", end.exit_code);
  if (end.exit_code == 130) return fail(ErrorCode::kCancelled, "{}", line);
  return fail(end.exit_code == 2 ? ErrorCode::kInvalidArgument : ErrorCode::kIo, "{}", line);
}

}  // namespace kvspan
