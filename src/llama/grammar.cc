// SPDX-License-Identifier: Apache-2.0
#include "llama/grammar.h"

#include <json-schema-to-grammar.h>
#include <unistd.h>

#include <cstdio>

#include "base/fail.h"
#include "llama/ggml_log.h"

namespace kvspan {
namespace {

constexpr std::size_t kGrammarExcerpt = 60;  // bytes of a refused text that an error shows

std::string excerpt(const std::string& text) {
  return text.size() <= kGrammarExcerpt ? text : fmt::format("{}...", text.substr(0, kGrammarExcerpt));
}

// libllama tells what is wrong with a grammar on standard error only, and kvspan never prints from
// a library: while one lives, what goes there goes to a file without a name.
class StandardErrorCapture {
 public:
  StandardErrorCapture() : file_(std::tmpfile()), saved_(file_ != nullptr ? dup(2) : -1) {
    std::fflush(stderr);
    if (saved_ >= 0) dup2(fileno(file_), 2);
  }
  ~StandardErrorCapture() {
    restore();
    if (file_ != nullptr) std::fclose(file_);
  }
  StandardErrorCapture(const StandardErrorCapture&) = delete;
  StandardErrorCapture& operator=(const StandardErrorCapture&) = delete;

  // Ends the capture and gives its first line; what follows repeats the grammar.
  std::string first_line() {
    restore();
    std::string line;
    if (file_ == nullptr) return line;
    std::rewind(file_);
    for (int c; (c = std::fgetc(file_)) != EOF && c != '\n';) line += static_cast<char>(c);
    return line;
  }

 private:
  void restore() {
    if (saved_ < 0) return;
    std::fflush(stderr);
    dup2(saved_, 2);
    close(saved_);
    saved_ = -1;
  }
  std::FILE* file_;
  int saved_;
};

}  // namespace

Result<std::string> grammar_of_schema(const std::string& json_schema) {
  try {
    return json_schema_to_grammar(common_json::parse(json_schema));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return fail(ErrorCode::kInvalidArgument, "json-schema '{}' is refused: {}; allowed: {}",
                excerpt(json_schema), error.what(), "a JSON schema (json-schema.org)");
  }
}

Status check_grammar(const llama_vocab* vocabulary, const std::string& grammar) {
  const GgmlLogCapture log;
  StandardErrorCapture printed;
  llama_sampler* sampler = llama_sampler_init_grammar(vocabulary, grammar.c_str(), "root");
  const std::string reason = printed.first_line();
  if (sampler != nullptr) {
    llama_sampler_free(sampler);
    return {};
  }
  return fail(ErrorCode::kInvalidArgument, "grammar '{}' is refused: {}; allowed: {}",
              excerpt(grammar), reason.empty() ? log.reason() : reason,
              "GBNF with a rule called root");
}

}  // namespace kvspan
