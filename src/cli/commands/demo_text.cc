// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/demo_text.h"

#include <string_view>

#include "base/fail.h"
#include "cli/data_folder.h"
#include "io/atomic_file.h"

namespace kvspan::cli {
namespace {

Result<std::string> read_part(const std::string& folder, const char* name) {
  KVSPAN_TRY(const auto bytes, read_file(folder + "/demo/" + name));
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  while (text.ends_with('\n')) text.pop_back();
  if (text.empty()) {
    return fail(ErrorCode::kCorruptData, "'{}/demo/{}' is empty", folder, name);
  }
  return text;
}

// What answers the question is planted in the middle of the text; here it comes after a third.
constexpr std::size_t kExcerptBytes = 5000;
constexpr double kExcerptStart = 0.45;

std::string middle_of(const std::string& text) {
  if (text.size() <= kExcerptBytes) return text;
  const auto wanted = static_cast<std::size_t>(kExcerptStart * static_cast<double>(text.size()));
  const std::size_t line = text.find('\n', wanted);
  const std::size_t begin = line == std::string::npos ? wanted : line + 1;
  const std::size_t end = text.rfind('\n', begin + kExcerptBytes);
  return text.substr(begin, end > begin ? end - begin : kExcerptBytes);
}

}  // namespace

Result<DemoText> load_demo_text() {
  KVSPAN_TRY(const std::string folder, data_folder());
  DemoText demo;
  KVSPAN_TRY(demo.text, read_part(folder, "text.txt"));
  KVSPAN_TRY(demo.question, read_part(folder, "question.txt"));
  demo.excerpt = middle_of(demo.text);
  return demo;
}

}  // namespace kvspan::cli
