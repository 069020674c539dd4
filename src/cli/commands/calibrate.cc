// SPDX-License-Identifier: Apache-2.0
// kvspan calibrate: learns a model's directions from text and keeps them in a file.
#include <optional>

#include "base/fail.h"
#include "cli/calibration.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/known_layer_weights.h"
#include "cli/model_path.h"
#include "cli/output/format.h"
#include "cli/output/json_output.h"
#include "cli/output/progress_bar.h"
#include "cli/terminal/interrupt.h"
#include "io/user_folders.h"

namespace kvspan::cli {
namespace {

struct CalibrateFlags {
  ModelFlags model;
  std::string file;
  std::string output;
  std::string json;
  std::int64_t tokens = CalibrateOptions{}.tokens;
  std::int32_t window = CalibrateOptions{}.window;
  std::optional<std::int32_t> neighbours;
  std::string layer_weights = "auto";
  bool quick = false;
};

Result<std::string> output_path(const CalibrateFlags& flags, const Engine& engine) {
  if (!flags.output.empty()) {
    KVSPAN_CHECK_OK(check_json_target(flags.output));  // its folder is there
    return flags.output;
  }
  KVSPAN_TRY(std::string path, calibration_path(engine));
  KVSPAN_CHECK_OK(make_folders(path.substr(0, path.rfind('/'))));
  return path;
}

// What an earlier call read but did not weigh, stopped or with --quick. Only of the text that comes
// with kvspan: a calibration does not say which text it is of.
std::optional<Calibration> begun_before(const CalibrateFlags& flags, const Engine& engine,
                                        const std::string& path, const CalibrationPlan& plan) {
  if (!flags.file.empty() || flags.quick || flags.layer_weights == "none") return std::nullopt;
  auto found = load_calibration(engine, path);
  if (!found || has_layer_weights(*found) || !plan.fits(*found)) return std::nullopt;
  fmt::print(stderr,
             "kvspan: '{}' lacks only what errors of each layer cost; its text is not read again\n",
             path);
  return *std::move(found);
}

Result<Calibration> read_text(Engine& engine, const CalibrationPlan& plan) {
  std::optional<ProgressBar> bar;
  return gather_calibration(engine, plan.windows, plan.options,
                            [&](std::size_t done, std::size_t total) {
                              if (!bar) bar.emplace("calibrating", "tokens", total);
                              bar->update(done);
                            });
}

Result<int> calibrate(const CalibrateFlags& flags) {
  KVSPAN_CHECK_OK(check_json_target(flags.json));
  KVSPAN_CHECK_OK(apply_cpu_level(flags.model));
  catch_interrupts(Interrupts::kOnce);
  KVSPAN_TRY(const std::string model_path, find_model_path(flags.model.model));
  KVSPAN_TRY(const std::string text, calibration_text(flags.file));
  EngineOptions engine_options{.threads = static_cast<int>(flags.model.threads)};
  KVSPAN_TRY(engine_options.gpu_layers, flags.model.device.layers());
  KVSPAN_TRY(const auto engine, Engine::load(model_path, engine_options));
  engine->set_cancel_flag(&interrupted());
  KVSPAN_TRY(const std::string path, output_path(flags, *engine));

  CalibrateOptions options;
  options.tokens = flags.tokens;
  options.window = flags.window;
  options.neighbours = flags.neighbours;
  KVSPAN_TRY(const CalibrationPlan plan, plan_calibration(*engine, text, options));
  std::optional<Calibration> calibration = begun_before(flags, *engine, path, plan);
  if (!calibration) {
    KVSPAN_TRY(calibration, read_text(*engine, plan));
  }
  bool known = false;
  const std::string weights = flags.quick ? "none" : flags.layer_weights;
  if (flags.quick || weights == "auto") {
    KVSPAN_TRY(known, take_known_layer_weights(*calibration));
  }
  if (weights != "none" && !known) {
    // What has been learnt already is worth keeping if this is stopped.
    KVSPAN_CHECK_OK(save_calibration(path, *calibration));
    KVSPAN_CHECK_OK(measure_costs(model_path, engine_options, text, *calibration));
  }
  KVSPAN_CHECK_OK(save_calibration(path, *calibration));

  Json json{{"model", calibration->model},
            {"fingerprint", calibration->fingerprint},
            {"file", path},
            {"tokens", calibration->tokens},
            {"window", calibration->window},
            {"skip", calibration->skip},
            {"samples", calibration->sample_positions.size()},
            {"neighbours", calibration->neighbours},
            {"layers", calibration->layers.size()}};
  for (const LayerCalibration& layer : calibration->layers) {
    if (!has_layer_weights(*calibration)) break;
    json["key_weights"].push_back(layer.key_weight);
    json["value_weights"].push_back(layer.value_weight);
  }
  for (const RatePoint& point : calibration->rates) {
    json["rates"].push_back({{"bits", point.bits}, {"kl", point.kl}, {"loss", point.loss}});
  }
  KVSPAN_CHECK_OK(write_json(json, flags.json));
  if (flags.json != "-") {
    fmt::print("{} tokens of windows of {}, the first {} of each left out\nwritten to {}\n",
               format_count(static_cast<std::uint64_t>(calibration->tokens)), calibration->window,
               calibration->skip, path);
    fmt::print("layer weights: {}\n", !has_layer_weights(*calibration) ? "none"
                                      : known ? "those that come with kvspan for this model"
                                              : "measured");
  }
  return 0;
}

}  // namespace

Action setup_calibrate(CLI::App& app) {
  auto flags = std::make_shared<CalibrateFlags>();
  add_model_flag(app, flags->model);
  add_thread_flags(app, flags->model);
  add_device_flags(app, flags->model.device);
  add_text(app, "-f,--file", flags->file,
           "Text to learn from (default: prose, encyclopedia, web and code that come with "
           "kvspan)",
           "FILE");
  add_integer(app, "--tokens", flags->tokens, "Tokens of the text to read at most", 64, 1 << 26);
  add_integer(app, "-c,--ctx", flags->window,
              "Tokens of a window, or the model's context where that is shorter; every window is "
              "read as a text of its own",
              64, 1 << 20);
  add_integer(
      app, "--neighbours", flags->neighbours,
      "Following layers that each layer has moments with, 0 to 5: what codes of several layers are "
      "designed from (default: 2; 0 where a layer has over 1,024 numbers for a token)",
      0, kMostNeighbours);
  add_switch(app, "--quick", flags->quick,
             "Leave for later what takes longest: measuring what errors of each layer cost, where "
             "that does not come with kvspan");
  add_choice(
      app, "--layer-weights", flags->layer_weights,
      "What errors of each layer cost: those that come with kvspan for this model, else "
      "measured (auto), measured, the longer part of the work, or none: bands then takes all "
      "layers alike",
      {"auto", "measure", "none"});
  add_text(app, "-o,--output", flags->output,
           "Where to write (default: the user's cache folder, where recipes look)", "FILE");
  add_json_flag(app, flags->json);
  set_footer(app,
             "Examples:\n"
             "  kvspan calibrate -m smollm2\n"
             "  kvspan calibrate -m my_model.gguf --quick\n"
             "  kvspan calibrate -m gemma3 --file notes.txt --tokens 8192 -o notes.gguf\n"
             "Recipes that need a calibration make it themselves the first time.");
  return [flags] { return calibrate(*flags); };
}

}  // namespace kvspan::cli
