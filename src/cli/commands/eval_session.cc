// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/eval_session.h"

#include <filesystem>
#include <limits>
#include <map>
#include <memory>

#include "base/fail.h"
#include "cli/calibration.h"
#include "cli/data_folder.h"
#include "cli/model_path.h"
#include "cli/output/json_output.h"
#include "cli/output/voice.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/text_input.h"
#include "eval/engine_caches.h"
#include "io/atomic_file.h"
#include "io/sha256.h"

namespace kvspan::cli {

std::vector<std::string> TaskFlags::others(const std::string& reference) const {
  std::vector<std::string> out;
  for (const std::string& recipe : recipes) {
    if (recipe != reference) out.push_back(recipe);
  }
  return out;
}

void add_task_flags(CLI::App& app, TaskFlags& flags) {
  add_model_flag(app, flags.model);
  add_thread_flags(app, flags.model);
  add_device_flags(app, flags.model.device);
  add_recipe_flag(app, "--cache", flags.recipes, "Recipes to measure beside full");
  add_integer(app, "-s,--seed", flags.seed, "Seed of generated prompts and of resampling", 0,
              std::numeric_limits<std::uint32_t>::max());
  add_weights_flag(app, flags.weights);
  add_json_flag(app, flags.json);
  add_resume_flag(app, flags.resume);
}

void add_resume_flag(CLI::App& app, bool& target) {
  add_switch(app, "--resume", target,
             "Go on from what the file of --json holds of the same model, data and seed");
}

Result<Json> earlier_run(bool resume, const std::string& file, const Json& identity) {
  if (!resume) return Json();
  if (file.empty() || file == "-") {
    return fail(ErrorCode::kInvalidArgument, "--resume: --json has to name the file to go on from");
  }
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return Json();
  KVSPAN_TRY(Json before, read_json(file));
  const auto found = before.is_object() ? before.find("identity") : before.end();
  if (!before.is_object() || found == before.end()) {
    return fail(ErrorCode::kInvalidArgument, "--resume: '{}' is not what kvspan eval writes", file);
  }
  if (const auto difference = first_difference(*found, identity)) {
    return fail(ErrorCode::kInvalidArgument,
                "--resume: '{}' is of another {}; without --resume it is replaced", file,
                *difference);
  }
  return before;
}

std::string checksum_of(std::string_view text) {
  Sha256 sum;
  sum.add(std::as_bytes(std::span(text)));
  return sum.finish();
}

void add_weights_flag(CLI::App& app, std::string& target) {
  add_choice(app, "--weights", target,
             "The file's weights, or the same numbers as f32 or f16. With quantized weights "
             "activations are rounded to 8 bits, which alone makes a divergence of some 0.003 of "
             "any change; f32 shows the cache's own, f16 nearly so and faster",
             {"file", "f32", "f16"});
}

Result<std::optional<TemporaryModel>> float_weights(const std::string& path,
                                                    const std::string& weights) {
  if (weights == "file") return std::optional<TemporaryModel>();
  KVSPAN_TRY(auto floats, TemporaryModel::float_copy_of(
                              path, weights == "f32" ? FloatWeights::kF32 : FloatWeights::kF16));
  return std::optional<TemporaryModel>(std::move(floats));
}

Result<bool> any_needs_calibration(const std::vector<std::string>& recipes) {
  for (const std::string& recipe : recipes) {
    KVSPAN_TRY(const bool needed, needs_calibration(recipe));
    if (needed) return true;
  }
  return false;
}

CacheSource cache_source(const Engine& engine, const Calibration* calibration) {
  auto said = std::make_shared<std::map<std::string, CodeNote>>();
  return
      [&engine, calibration, said](const std::string& recipe) -> Result<std::unique_ptr<KvCache>> {
        KVSPAN_TRY(const CacheFactory caches, engine_caches(engine, recipe, calibration));
        auto cache = caches.make();
        if (!said->contains(recipe)) fmt::print(stderr, "{}", engine.device_note());
        say_details((*said)[recipe].line(*cache));
        return cache;
      };
}

Result<EvalSession> EvalSession::open(const TaskFlags& flags) {
  KVSPAN_CHECK_OK(check_json_target(flags.json));
  KVSPAN_CHECK_OK(apply_cpu_level(flags.model));
  catch_interrupts(Interrupts::kOnce);
  EvalSession out;
  KVSPAN_TRY(out.path, find_model_path(flags.model.model));
  EngineOptions options;
  options.threads = static_cast<int>(flags.model.threads);
  KVSPAN_TRY(options.gpu_layers, flags.model.device.layers());
  fmt::print(stderr, "{}", flags.model.device.note());
  KVSPAN_TRY(out.floats, float_weights(out.path, flags.weights));
  KVSPAN_TRY(out.engine, Engine::load(out.floats ? out.floats->path() : out.path, options));
  out.engine->set_cancel_flag(&interrupted());
  KVSPAN_TRY(out.tokenizer, Tokenizer::open(out.path));
  return out;
}

Status EvalSession::calibrate(const TaskFlags& flags) {
  KVSPAN_TRY(const bool needed, any_needs_calibration(flags.recipes));
  if (needed && floats) {
    KVSPAN_TRY(const auto model, Engine::load(path, engine->options()));
    model->set_cancel_flag(&interrupted());
    KVSPAN_TRY(calibration, calibration_for(*model));
  } else if (needed) {
    KVSPAN_TRY(calibration, calibration_for(*engine));
  }
  return {};
}

Json EvalSession::identity(const std::string& task, const TaskFlags& flags) const {
  return {{"task", task},
          {"fingerprint", engine->fingerprint()},
          {"weights", flags.weights},
          {"seed", flags.seed}};
}

Result<std::string> read_task_file(const std::string& path) {
  KVSPAN_TRY(const auto bytes, read_file(path));
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  KVSPAN_CHECK_OK(check_text(text, path));
  return text;
}

Result<std::string> task_file_path(const std::string& name) {
  KVSPAN_TRY(const std::string folder, data_folder());
  return folder + "/tasks/" + name;
}

}  // namespace kvspan::cli
