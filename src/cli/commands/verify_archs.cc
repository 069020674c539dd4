// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/verify_archs.h"

#include <unistd.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "base/fail.h"
#include "cli/output/json_output.h"
#include "cli/output/table.h"
#include "cli/terminal/interrupt.h"
#include "eval/verify/architecture_check.h"
#include "io/process.h"
#include "io/user_folders.h"

namespace kvspan::cli {
namespace {

namespace fs = std::filesystem;

// A folder of its own for models, which goes with all that is in it.
class ModelFolder {
 public:
  static Result<ModelFolder> make() {
    KVSPAN_TRY(const std::string cache, user_cache_folder());
    std::string path = fmt::format("{}/archs-{}", cache, ::getpid());
    KVSPAN_CHECK_OK(make_folders(path));
    return ModelFolder(std::move(path));
  }
  ModelFolder(ModelFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ~ModelFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  // Sorted by name.
  std::set<std::string> models() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(path_)) {
      if (entry.path().extension() == ".gguf") found.insert(entry.path().string());
    }
    return found;
  }

 private:
  explicit ModelFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Expressions for the generator's -a, each of which names some architectures: one letter at a time,
// so that the models of all never lie on the disk together.
std::vector<std::string> expressions(const std::string& archs) {
  std::vector<std::string> out;
  if (archs == "all") {
    for (char c = 'a'; c <= 'z'; ++c) out.push_back(fmt::format("^{}", c));
    return out;
  }
  std::stringstream names(archs);
  for (std::string name; std::getline(names, name, ',');) out.push_back(fmt::format("^{}$", name));
  return out;
}

// One model in a process of its own: what libllama aborts on is a row, not the end.
Result<Json> check_apart(const std::string& model, const ArchsFlags& flags) {
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  KVSPAN_TRY(const auto end, run_process({self, "verify", "--archs", model, "--cache", flags.recipe,
                                          "--tokens", std::to_string(flags.tokens), "--threads",
                                          std::to_string(flags.threads), "--json", "-"}));
  const Json found = Json::parse(end.output, nullptr, /*allow_exceptions=*/false);
  Json row{{"runs", false}};
  if (end.exit_code != 0 || !found.is_object()) {
    row["reason"] = fmt::format("libllama ended the process (exit status {})", end.exit_code);
  } else {
    for (const char* key : {"runs", "reason", "max_diff", "max_diff_stock"}) {
      if (found.contains(key)) row[key] = found[key];
    }
  }
  row["model"] = fs::path(model).stem().string();
  return row;
}

Result<int> check_one(const ArchsFlags& flags) {
  ArchitectureCheckOptions options;
  options.recipe = flags.recipe;
  options.tokens = static_cast<std::int32_t>(flags.tokens);
  options.threads = static_cast<int>(flags.threads);
  KVSPAN_TRY(const ArchitectureCheck check, check_architecture(flags.archs, options));
  Json row{{"arch", check.architecture}, {"runs", check.runs}, {"reason", check.reason}};
  if (check.runs) {
    row["max_diff"] = check.max_diff;
    row["max_diff_stock"] = check.max_diff_stock;
  }
  KVSPAN_CHECK_OK(write_json(row, flags.json));
  if (flags.json == "-") return 0;
  fmt::print("{}\n", check.runs
                         ? fmt::format("{}: runs, largest difference {:.1e}, llama.cpp f16 {:.1e}",
                                       check.architecture, check.max_diff, check.max_diff_stock)
                         : "does not run: " + check.reason);
  return 0;
}

// "name-dense" or "name-moe" without what follows the last hyphen.
std::string architecture_in(const std::string& model) {
  return model.substr(0, model.rfind('-'));
}

}  // namespace

Result<int> verify_archs(const ArchsFlags& flags) {
  if (flags.archs.ends_with(".gguf")) return check_one(flags);
  if (!fs::exists(KVSPAN_ARCHS_GENERATOR)) {
    return fail(ErrorCode::kNotFound,
                "--archs {}: llama.cpp's generator of tiny models has not been built (scripts/dependencies.sh does)",
                flags.archs);
  }
  KVSPAN_TRY(const ModelFolder folder, ModelFolder::make());
  Json rows = Json::array();
  Table table({{"model"},
               {"runs"},
               {"max diff", Table::Align::kRight},
               {"llama.cpp f16", Table::Align::kRight},
               {"why not"}});
  std::set<std::string> all, running;
  for (const std::string& expression : expressions(flags.archs)) {
    if (interrupted()) return fail(ErrorCode::kCancelled, "stopped");
    KVSPAN_TRY(const auto made,
               run_process({KVSPAN_ARCHS_GENERATOR, "-a", expression, "-o", folder.path()}));
    const auto models = folder.models();
    if (models.empty() && flags.archs != "all") {
      return fail(ErrorCode::kInvalidArgument,
                  "--archs: libllama's generator makes no model of '{}' (exit status {})",
                  expression.substr(1, expression.size() - 2), made.exit_code);
    }
    for (const std::string& model : models) {
      if (interrupted()) return fail(ErrorCode::kCancelled, "stopped");
      KVSPAN_TRY(Json row, check_apart(model, flags));
      fs::remove(model);
      const std::string name = row["model"];
      row["arch"] = architecture_in(name);
      const bool runs = row["runs"];
      all.insert(architecture_in(name));
      if (runs) running.insert(architecture_in(name));
      const auto number = [&](const char* key) {
        return runs ? fmt::format("{:.1e}", row[key].get<double>()) : std::string("-");
      };
      table.add_row({name, runs ? "yes" : "no", number("max_diff"), number("max_diff_stock"),
                     row["reason"].get<std::string>()});
      fmt::print(stderr, "{}: {}\n", name, runs ? "runs" : row["reason"].get<std::string>());
      rows.push_back(std::move(row));
    }
  }
  const Json json{{"recipe", flags.recipe},
                  {"tokens", flags.tokens},
                  {"architectures", all.size()},
                  {"running", running.size()},
                  {"rows", std::move(rows)}};
  KVSPAN_CHECK_OK(write_json(json, flags.json));
  if (flags.json != "-") {
    fmt::print("{}{} of {} architectures run\n", table.text(), running.size(), all.size());
  }
  return 0;
}

}  // namespace kvspan::cli
