// SPDX-License-Identifier: Apache-2.0
// kvspan report: one page of what other commands measured.
#include "report/report.h"

#include <algorithm>
#include <filesystem>

#include "base/fail.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/output/format.h"
#include "io/atomic_file.h"
#include "report/page.h"

namespace kvspan::cli {
namespace {

constexpr std::size_t kMostFileBytes = std::size_t{256} << 20;

struct ReportFlags {
  std::string folder;
  std::string output;
  std::string svg;
};

// The folder's .json and .jsonl files by name. Those that cannot be read become warnings.
Result<std::vector<NamedText>> read_folder(const std::string& folder,
                                           std::vector<std::string>& warnings) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return fail(ErrorCode::kNotFound, "there is no folder '{}'", folder);
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string ending = entry.path().extension().string();
    if ((ending == ".json" || ending == ".jsonl") && entry.is_regular_file()) {
      paths.push_back(entry.path());
    }
  }
  if (error) return fail(ErrorCode::kIo, "cannot list '{}': {}", folder, error.message());
  if (paths.empty()) {
    return fail(ErrorCode::kNotFound,
                "'{}' has no .json or .jsonl file; write some there with --json", folder);
  }
  std::sort(paths.begin(), paths.end());
  std::vector<NamedText> files;
  for (const auto& path : paths) {
    const auto bytes = read_file(path.string(), kMostFileBytes);
    if (!bytes) {
      warnings.push_back(bytes.error().message);
      continue;
    }
    files.push_back({path.filename().string(),
                     std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size())});
  }
  return files;
}

Result<int> draw(const ReportFlags& flags, const std::vector<NamedText>& files) {
  auto picture = quality_picture(files);
  if (!picture) {
    return fail(picture.error().code, "--svg: '{}': {}", flags.folder, picture.error().message);
  }
  KVSPAN_CHECK_OK(write_file(flags.svg, picture->svg));
  fmt::print("{}: {}\n", flags.svg, fmt::join(picture->drawn, ", "));
  if (!picture->apart.empty()) {
    fmt::print("not drawn, of another model, text or length, or without a word on it: {}\n",
               fmt::join(picture->apart, ", "));
  }
  return 0;
}

Result<int> report(const ReportFlags& flags) {
  std::vector<std::string> unread;
  KVSPAN_TRY(const auto files, read_folder(flags.folder, unread));
  if (!flags.svg.empty()) return draw(flags, files);
  const std::filesystem::path page = flags.output.empty()
                                         ? std::filesystem::path(flags.folder) / "report.html"
                                         : std::filesystem::path(flags.output);
  const std::filesystem::path beside = page.has_parent_path() ? page.parent_path() : ".";
  std::error_code ignored;
  if (!std::filesystem::is_directory(beside, ignored)) {
    return fail(ErrorCode::kNotFound, "--output: there is no folder '{}'", beside.string());
  }
  auto built = build_report(files);
  if (!built) return fail(built.error().code, "'{}': {}", flags.folder, built.error().message);
  built->warnings.insert(built->warnings.end(), unread.begin(), unread.end());
  const std::string text = page_of(*built);
  KVSPAN_CHECK_OK(write_file(page.string(), text));
  KVSPAN_CHECK_OK(write_file((beside / "report.csv").string(), csv_of(*built)));
  KVSPAN_CHECK_OK(write_file((beside / "report.json").string(), json_of(*built)));
  for (const std::string& warning : built->warnings) {
    fmt::print(stderr, "kvspan: left out: {}\n", warning);
  }
  fmt::print("{} ({}), with report.csv and report.json beside it\n", page.string(),
             format_bytes(text.size()));
  return 0;
}

}  // namespace

Action setup_report(CLI::App& app) {
  auto flags = std::make_shared<ReportFlags>();
  add_required(app, "folder", flags->folder,
               "Folder with what eval, bench, inspect, study and verify wrote with --json, and "
               "run with --track (.jsonl)",
               "DIR");
  add_text(app, "-o,--output", flags->output,
           "The page (default: report.html in the folder); report.csv and report.json go "
           "beside it",
           "FILE");
  add_text(app, "--svg", flags->svg,
           "Instead of the page, divergence against bytes of all eval ppl files of one model "
           "and text as a picture",
           "FILE");
  exclude_each_other(app, "--svg", "--output");
  set_footer(app,
             "Examples:\n"
             "  kvspan report results\n"
             "  kvspan report results -o page.html\n"
             "  kvspan report results --svg quality.svg\n"
             "One HTML page without scripts or network: tables, charts, exact commands; "
             "docs/reference/report.md.");
  return [flags] { return report(*flags); };
}

}  // namespace kvspan::cli
