// SPDX-License-Identifier: Apache-2.0
// kvspan import: a Hugging Face folder becomes a GGUF file, through scripts/import_hf.py.
// KVSPAN_LLAMA_SOURCE is this file's compile definition, set by CMakeLists.txt beside it.
#include <filesystem>

#include "base/fail.h"
#include "cli/command.h"
#include "cli/data_folder.h"
#include "cli/flags.h"
#include "io/process.h"

namespace kvspan::cli {
namespace {

struct ImportFlags {
  std::string folder;
  std::string out;
  std::string type = "auto";
  bool force = false;
  bool yes = false;
  bool trust_code = false;
};

// "models/SmolLM2-135M/" -> "SmolLM2-135M.gguf" in the working directory.
std::string default_output(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  fs::path path = fs::weakly_canonical(folder, ignored);
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string() + ".gguf";
}

Result<int> import_folder(const ImportFlags& flags) {
  std::error_code error;
  if (!std::filesystem::is_directory(flags.folder, error)) {
    return fail(ErrorCode::kNotFound, "there is no folder '{}'", flags.folder);
  }
  const std::string out = flags.out.empty() ? default_output(flags.folder) : flags.out;
  KVSPAN_TRY(const std::string script, script_path("import_hf.py"));
  std::vector<std::string> command = {"python3",           script,      "--machine", "--archive",
                                      KVSPAN_LLAMA_SOURCE, "--outtype", flags.type};
  if (flags.force) command.emplace_back("--force");
  if (flags.yes) command.emplace_back("--yes");
  if (flags.trust_code) command.emplace_back("--trust-code");
  command.insert(command.end(), {"--", flags.folder, out});
  auto run = run_process(command);
  if (!run && run.error().code == ErrorCode::kNotFound) {
    return fail(ErrorCode::kNotFound, "python3 is needed to convert models and is not installed");
  }
  KVSPAN_TRY(const ProcessEnd end, std::move(run));
  if (end.exit_code == 0) {
    fmt::print("{}\n", out);
    return 0;
  }
  std::string reason = end.output;
  while (reason.ends_with('\n')) reason.pop_back();
  if (end.exit_code == 130) return fail(ErrorCode::kCancelled, "interrupted");
  return fail(end.exit_code == 2 ? ErrorCode::kInvalidArgument : ErrorCode::kIo, "{}",
              reason.empty() ? fmt::format("import_hf.py ended with {}", end.exit_code) : reason);
}

}  // namespace

Action setup_import(CLI::App& app) {
  auto flags = std::make_shared<ImportFlags>();
  add_required(app, "folder", flags->folder, "Folder with config.json, tokenizer and weights",
               "DIR");
  add_text(app, "-o,--outfile", flags->out, "GGUF file to write (default: the folder's name)",
           "FILE");
  add_choice(app, "--outtype", flags->type, "Type of the weights (default: auto)",
             {"auto", "f32", "f16", "bf16", "q8_0"});
  add_switch(app, "--force", flags->force, "Replace the file if it is there");
  add_switch(app, "-y,--yes", flags->yes,
             "Install the Python packages of the converter without asking");
  add_switch(app, "--trust-code", flags->trust_code,
             "Let Python code of the folder run, as some tokenizers need");
  set_footer(app,
             "Examples:\n"
             "  kvspan import SmolLM2-360M-Instruct\n"
             "  kvspan import pythia-160m -o pythia.gguf --outtype f16\n");
  return [flags] { return import_folder(*flags); };
}

}  // namespace kvspan::cli
