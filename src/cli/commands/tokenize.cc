// SPDX-License-Identifier: Apache-2.0
// kvspan tokenize: a text as token ids.

#include "base/fail.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/model_path.h"
#include "cli/output/format.h"
#include "cli/output/json_output.h"
#include "cli/terminal/text_input.h"
#include "llama/tokenizer.h"

namespace kvspan::cli {
namespace {

struct TokenizeFlags {
  ModelFlags model;
  TextFlags text;
  std::string json;
  bool pieces = false;
  bool special = false;
  bool no_bos = false;
};

Json to_json(const Tokenizer& tokenizer, const std::vector<Token>& tokens) {
  Json pieces = Json::array();
  for (const Token token : tokens) pieces.push_back(tokenizer.piece(token, true));
  return Json{{"count", tokens.size()}, {"tokens", tokens}, {"pieces", std::move(pieces)}};
}

Result<int> tokenize(const TokenizeFlags& flags) {
  KVSPAN_CHECK_OK(check_json_target(flags.json));
  KVSPAN_TRY(const std::string text, read_text(flags.text, LastNewline::kKeep));
  KVSPAN_TRY(const std::string path, find_model_path(flags.model.model));
  KVSPAN_TRY(const auto tokenizer, Tokenizer::open(path));
  KVSPAN_TRY(
      const std::vector<Token> tokens,
      tokenizer->encode(text, {.add_special = !flags.no_bos, .parse_special = flags.special}));
  KVSPAN_CHECK_OK(write_json(to_json(*tokenizer, tokens), flags.json));
  if (flags.json == "-") return 0;
  if (!flags.pieces) {
    fmt::print("{}\n", fmt::join(tokens, " "));
    return 0;
  }
  for (const Token token : tokens) {
    fmt::print("{:>6}  {}\n", token, in_quotes(tokenizer->piece(token, true)));
  }
  return 0;
}

}  // namespace

Action setup_tokenize(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  add_model_flag(app, flags->model);
  add_text_flags(app, flags->text, "text");
  add_switch(app, "--pieces", flags->pieces, "One token a line, with its text");
  add_switch(app, "--special", flags->special,
             "Special tokens written out (<|im_end|>) are tokens");
  add_switch(app, "--no-bos", flags->no_bos, "Leave out the begin-of-text token");
  add_json_flag(app, flags->json);
  set_footer(app,
             "Examples:\n"
             "  kvspan tokenize -m smollm2 \"Hello world\"\n"
             "  kvspan tokenize -m smollm2 --pieces --special \"<|im_start|>user\"\n"
             "  kvspan tokenize -m stories260k --json - -f story.txt\n");
  return [flags] { return tokenize(*flags); };
}

}  // namespace kvspan::cli
