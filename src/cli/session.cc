// SPDX-License-Identifier: Apache-2.0
#include "cli/session.h"

#include "base/fail.h"
#include "cli/calibration.h"
#include "cli/model_path.h"
#include "cli/terminal/interrupt.h"
#include "llama/calibration_file.h"

namespace kvspan::cli {

namespace {

// Learning a model's directions takes minutes: nobody who asks one question should wait for it.
Result<std::string> default_recipe(const Engine& engine, std::string& note) {
  KVSPAN_TRY(const auto calibration, find_calibration(engine));
  if (calibration) return std::string(kDefaultRecipe);
  note = fmt::format(
      "kvspan: the cache is full rank; once `kvspan calibrate` has learned the directions of {}, "
      "it "
      "will be {}\n",
      engine.info().name, kDefaultRecipe);
  return std::string("full");
}

Status open_draft(Session& session, const ModelFlags& flags, const CompanionFlags& companions) {
  if (companions.draft_model.empty()) return {};
  KVSPAN_TRY(const std::string path, find_model_path(companions.draft_model));
  KVSPAN_TRY(session.draft,
             Draft::open(path, {.threads = static_cast<int>(flags.threads)}, *session.engine,
                         static_cast<std::int32_t>(companions.draft)));
  session.draft->set_cancel_flag(&interrupted());
  return {};
}

}  // namespace

void Session::say_code() {
  fmt::print(stderr, "{}", code.line(*cache));
}

Result<Session> open_session(const ModelFlags& flags, const CompanionFlags& companions) {
  KVSPAN_CHECK_OK(apply_cpu_level(flags));
  KVSPAN_TRY(const std::string path, find_model_path(flags.model));
  EngineOptions options{.threads = static_cast<int>(flags.threads)};
  KVSPAN_TRY(options.adapters, companions.adapters());
  KVSPAN_TRY(const std::string chat_template, companions.template_text());
  Session session;
  KVSPAN_TRY(session.engine, Engine::load(path, options));
  session.context = session.engine->info().context;
  if (flags.context > session.context) {
    return fail(ErrorCode::kInvalidArgument, "--ctx-size: {} exceeds the model's context of {}",
                flags.context, session.context);
  }
  if (flags.context > 0) session.context = static_cast<std::int32_t>(flags.context);
  session.engine->set_cancel_flag(&interrupted());
  std::string recipe = flags.recipe;
  if (recipe.empty()) {
    KVSPAN_TRY(recipe, default_recipe(*session.engine, session.note));
  }
  KVSPAN_TRY(session.cache, new_cache(*session.engine, recipe));
  auto tokenizer = Tokenizer::open(path, chat_template);
  if (!tokenizer) {
    // One about the template begins with the flag's name.
    const std::string& why = tokenizer.error().message;
    return fail(tokenizer.error().code, "{}{}", why.starts_with("chat-template") ? "--" : "", why);
  }
  session.tokenizer = *std::move(tokenizer);
  KVSPAN_CHECK_OK(open_draft(session, flags, companions));
  return session;
}

Status check_prompt_length(std::size_t tokens, const Session& session) {
  if (tokens == 0) return fail(ErrorCode::kInvalidArgument, "the prompt has no tokens");
  if (tokens <= static_cast<std::size_t>(session.context)) return {};
  const std::int32_t most = session.engine->info().context;
  return fail(ErrorCode::kOutOfBudget, "the prompt has {} tokens, the context holds {}{}", tokens,
              session.context,
              session.context < most ? fmt::format(" (-c takes up to {})", most) : "");
}

}  // namespace kvspan::cli
