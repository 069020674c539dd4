// SPDX-License-Identifier: Apache-2.0
#include "cli/session.h"

#include "base/fail.h"
#include "cli/calibration.h"
#include "cli/model_path.h"
#include "cli/output/voice.h"
#include "cli/terminal/interrupt.h"
#include "llama/calibration_file.h"

namespace kvspan::cli {

namespace {

// One that answers, and continuations of it.
constexpr std::int32_t kDeviceSequences = 4;

// Learning a model's directions takes a minute or more: nobody who asks one question should wait for
// it. Without a calibration codes are learnt from the text itself, where the model's attention
// allows that. What is wrong with a calibration that is there is said, and the cache is full rank.
Status use_default_recipe(Session& session) {
  const Engine& engine = *session.engine;
  // A GPU reads other recipes than the usual one.
  if (engine.options().gpu_layers > 0) return session.use_recipe("full");
  const auto path = calibration_path(engine);
  if (path && file_calibration_checksum(*path)) {
    const Status status = session.use_recipe(std::string(kDefaultRecipe));
    if (status || status.error().code == ErrorCode::kCancelled) return status;
    session.note += fmt::format(
        "kvspan: {}; the cache is full rank, `kvspan calibrate` makes it anew\n",
        status.error().message);
    return session.use_recipe("full");
  }
  const std::string recipe = fmt::format("{},calib=online", kDefaultRecipe);
  const bool learns = static_cast<bool>(session.use_recipe(recipe));
  if (!learns) KVSPAN_CHECK_OK(session.use_recipe("full"));
  session.note += fmt::format(
      "kvspan: {} has no calibration: the cache {}; `kvspan calibrate --quick` makes one in about a "
      "minute, and then it is {}\n",
      engine.info().name,
      learns ? "learns its code from the text, after the first 2,048 tokens" : "is full rank",
      kDefaultRecipe);
  return {};
}

Status use_named_recipe(Session& session, const std::string& recipe) {
  const Status status = session.use_recipe(recipe);
  if (status || status.error().code != ErrorCode::kCorruptData) return status;
  return fail(ErrorCode::kCorruptData, "{}; `kvspan calibrate` makes it anew, --cache full does without",
              status.error().message);
}

Status open_draft(Session& session, const ModelFlags& flags, const CompanionFlags& companions) {
  if (companions.draft_model.empty()) return {};
  KVSPAN_TRY(const std::string path, find_model_path(companions.draft_model));
  KVSPAN_TRY(session.draft,
             Draft::open(path,
                         {.threads = static_cast<int>(flags.threads),
                          .adapt_threads = !companions.fixed_threads},
                         *session.engine, static_cast<std::int32_t>(companions.draft)));
  session.draft->set_cancel_flag(&interrupted());
  return {};
}

}  // namespace

Status Session::use_recipe(const std::string& recipe) {
  KVSPAN_TRY(caches, caches_for(*engine, recipe));
  cache = caches->make();
  if (note.find(engine->device_note()) == std::string::npos) note += engine->device_note();
  return {};
}

void Session::say_code() {
  say_details(code.line(*cache));
}

Result<Session> open_session(const ModelFlags& flags, const CompanionFlags& companions) {
  KVSPAN_CHECK_OK(apply_cpu_level(flags));
  KVSPAN_TRY(const std::string path, find_model_path(flags.model));
  EngineOptions options{.threads = static_cast<int>(flags.threads)};
  options.adapt_threads = !companions.fixed_threads;
  KVSPAN_TRY(options.gpu_layers, flags.device.layers());
  if (options.gpu_layers > 0) options.sequences = kDeviceSequences;
  options.rope = companions.llama.rope_options();
  if (companions.llama.changes_rope()) options.context = static_cast<std::int32_t>(flags.context);
  KVSPAN_TRY(options.adapters, companions.adapters());
  KVSPAN_TRY(const std::string chat_template, companions.template_text());
  Session session;
  KVSPAN_TRY(session.engine, Engine::load(path, options));
  session.context = session.engine->info().context;
  if (flags.context > session.context) {
    return fail(ErrorCode::kInvalidArgument,
                "--ctx-size: {} exceeds the model's context of {} (--rope-scaling yarn stretches "
                "it)",
                flags.context, session.context);
  }
  if (flags.context > 0) session.context = static_cast<std::int32_t>(flags.context);
  session.engine->set_cancel_flag(&interrupted());
  session.note = flags.device.note();
  KVSPAN_TRY(std::string recipe, companions.llama.recipe());
  if (recipe.empty()) recipe = flags.recipe;
  KVSPAN_CHECK_OK(recipe.empty() ? use_default_recipe(session) : use_named_recipe(session, recipe));
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
