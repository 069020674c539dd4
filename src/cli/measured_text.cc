// SPDX-License-Identifier: Apache-2.0
#include "cli/measured_text.h"

#include <algorithm>

#include "base/fail.h"
#include "cli/data_folder.h"
#include "cli/flags.h"
#include "cli/terminal/text_input.h"
#include "io/atomic_file.h"

namespace kvspan::cli {

void add_measured_text_flag(CLI::App& app, std::string& file) {
  add_text(app, "-f,--file", file, "Text to read (default: the demo text)", "FILE");
}

Result<MeasuredText> read_measured_text(const std::string& file) {
  MeasuredText measured{file, {}};
  if (file.empty()) {
    KVSPAN_TRY(const std::string folder, data_folder());
    measured.path = folder + "/demo/text.txt";
  }
  KVSPAN_TRY(const auto bytes, read_file(measured.path));
  measured.text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  KVSPAN_CHECK_OK(check_text(measured.text, measured.path));
  return measured;
}

Result<std::vector<Token>> measured_tokens(const std::string& model_path, const std::string& file,
                                           std::size_t count) {
  KVSPAN_TRY(const MeasuredText measured, read_measured_text(file));
  const std::string_view text = measured.text;
  KVSPAN_TRY(const auto tokenizer, Tokenizer::open(model_path));
  // No vocabulary needs more bytes for a token, and a whole book would take seconds to encode.
  KVSPAN_TRY(auto tokens, tokenizer->encode(mended_utf8(text.substr(0, count * 16)), {}));
  if (tokens.empty()) return fail(ErrorCode::kInvalidArgument, "'{}' has no tokens", measured.path);
  const std::size_t distinct = tokens.size();
  tokens.resize(count);
  for (std::size_t i = distinct; i < count; ++i) tokens[i] = tokens[i - distinct];
  return tokens;
}

}  // namespace kvspan::cli
