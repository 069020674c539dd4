// SPDX-License-Identifier: Apache-2.0
// kvspan inspect: how many directions a model's keys and values need, where and when.
#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/fail.h"
#include "cli/calibration.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/model_path.h"
#include "cli/output/inspect_json.h"
#include "cli/output/progress_bar.h"
#include "cli/terminal/interrupt.h"
#include "eval/perplexity/windows.h"
#include "io/atomic_file.h"
#include "io/user_folders.h"
#include "llama/tokenizer.h"
#include "report/blocks.h"

namespace kvspan::cli {
namespace {

// Sample rows are f32 in memory: chunks and residuals are of no more rows than fit.
constexpr std::int64_t kSampleBytes = std::int64_t{512} << 20;
constexpr std::int64_t kSamplesOfOthers = 64;  // texts beyond the first are asked for moments only

struct InspectFlags {
  ModelFlags model;
  std::vector<std::string> files;
  std::int64_t tokens = 8192;
  std::int64_t context = 4096;
  std::int64_t chunk = 512;
  std::int64_t anchor = 0;
  std::vector<std::int64_t> ranks, layers;
  bool centred = false;
  std::string json;
  std::string plots;
};

struct NamedWindows {
  std::string name;
  std::vector<std::vector<Token>> windows;
};

Status check_numbers(const InspectFlags& flags, const CacheShape& shape) {
  for (const std::int64_t layer : flags.layers) {
    if (layer < 0 || layer >= static_cast<std::int64_t>(shape.layers.size())) {
      return fail(ErrorCode::kInvalidArgument, "--layers {}: the model's are 0 to {}", layer,
                  shape.layers.size() - 1);
    }
  }
  std::int32_t least = shape.layers.front().key_dim;
  for (const LayerShape& layer : shape.layers) {
    least = std::min({least, layer.key_dim, layer.value_dim});
  }
  for (const std::int64_t rank : flags.ranks) {
    if (rank < 1 || rank > least) {
      return fail(ErrorCode::kInvalidArgument, "--rank {}: allowed are 1 to {}", rank, least);
    }
  }
  return {};
}

std::string file_name(const std::string& path) {
  return path.empty() ? "calibration.txt" : std::filesystem::path(path).filename().string();
}

// A window for each text at least; one text is cut into halves, so that there are two to compare.
Result<std::vector<NamedWindows>> read_texts(const InspectFlags& flags, const Engine& engine,
                                             std::int32_t window, std::int32_t skip) {
  KVSPAN_TRY(const auto tokenizer, Tokenizer::open(engine.info().path));
  std::vector<NamedWindows> out;
  for (const std::string& file : flags.files.empty() ? std::vector<std::string>{""} : flags.files) {
    KVSPAN_TRY(const std::string text, calibration_text(file));
    WindowOptions options;
    options.length = static_cast<std::size_t>(window);
    options.most = static_cast<std::size_t>(flags.tokens / window);
    options.least = static_cast<std::size_t>(skip) + 1;
    auto windows = cut_windows(*tokenizer, text, options);
    if (!windows) {
      return fail(windows.error().code, "'{}': {} (--ctx)", file_name(file),
                  windows.error().message);
    }
    out.push_back({file_name(file), std::move(*windows)});
  }
  if (out.size() > 1) return out;
  auto& all = out.front().windows;
  if (all.size() < 2) {
    // One window: its second half is read as a text of its own.
    const auto half = static_cast<std::ptrdiff_t>(all.front().size() / 2);
    if (half <= skip) {
      return fail(ErrorCode::kInvalidArgument,
                  "'{}' has {} tokens; two halves of more than {} are needed, or a second --file",
                  out.front().name, all.front().size(), skip);
    }
    all.emplace_back(all.front().begin() + half, all.front().end());
    all.front().resize(static_cast<std::size_t>(half));
  }
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>((all.size() + 1) / 2);
  NamedWindows second{out.front().name + ", second half", {middle, all.end()}};
  all.erase(middle, all.end());
  out.front().name += ", first half";
  out.push_back(std::move(second));
  return out;
}

Result<std::vector<Calibration>> gather(Engine& engine, const std::vector<NamedWindows>& texts,
                                        std::int32_t window, std::int32_t skip) {
  std::size_t total = 0, before = 0;
  for (const NamedWindows& text : texts) {
    for (const auto& one : text.windows) total += one.size();
  }
  std::int64_t row_bytes = 0;
  for (const LayerShape& layer : engine.cache_shape().layers) {
    row_bytes += std::int64_t{4} * layer.kv_heads * (layer.key_dim + layer.value_dim);
  }
  ProgressBar bar("reading", "tokens", total);
  std::vector<Calibration> out;
  for (const NamedWindows& text : texts) {
    std::size_t length = 0;
    for (const auto& one : text.windows) length += one.size();
    CalibrateOptions options;
    options.window = window;
    options.skip = skip;
    options.samples = out.empty() ? std::clamp<std::int64_t>(kSampleBytes / row_bytes, 1,
                                                             static_cast<std::int64_t>(length))
                                  : kSamplesOfOthers;
    KVSPAN_TRY(auto calibration, gather_calibration(engine, text.windows, options,
                                                    [&](std::size_t done, std::size_t) {
                                                      bar.update(before + done);
                                                    }));
    out.push_back(std::move(calibration));
    before += length;
  }
  return out;
}

Result<std::size_t> write_plots(const Json& json, const std::string& folder) {
  std::size_t count = 0;
  for (const Block& block : inspect_blocks({"inspect", DocumentKind::kInspect, json})) {
    for (const Figure& figure : block.figures) {
      KVSPAN_CHECK_OK(
          write_file(folder + "/" + figure.name + ".svg", svg_of(figure, Setting::kFile)));
      ++count;
    }
  }
  return count;
}

void print_tables(const Inspection& inspection, const std::vector<std::string>& names) {
  fmt::print(
      "Directions that hold 90/95/99 % of the energy, effective dimension (e^entropy), share in "
      "the "
      "top 16\n{}\n",
      rank_table(inspection));
  fmt::print(
      "Sensitivity by rank: mean squared logit error (K), error over the residual stream's energy "
      "(V)\n{}\n",
      sensitivity_table(inspection));
  fmt::print(
      "Coding gain, bits an element: each head apart, heads together; keys and values "
      "together\n{}\n",
      gain_table(inspection));
  if (names.size() > 1) {
    fmt::print("Texts against each other, means over layers and heads\n{}\n",
               text_table(inspection, names));
  }
  fmt::print("Residuals |(I-P)x| / |x| by position, means over layers and heads\n{}\n",
             residual_table(inspection));
  fmt::print("Chunks of the first window, means over layers and heads\n{}", time_table(inspection));
}

Result<int> inspect(const InspectFlags& flags) {
  KVSPAN_CHECK_OK(check_json_target(flags.json));
  KVSPAN_CHECK_OK(apply_cpu_level(flags.model));
  catch_interrupts(Interrupts::kOnce);
  KVSPAN_TRY(const std::string path, find_model_path(flags.model.model));
  KVSPAN_TRY(const auto engine,
             Engine::load(path, {.threads = static_cast<int>(flags.model.threads)}));
  engine->set_cancel_flag(&interrupted());
  KVSPAN_CHECK_OK(check_numbers(flags, engine->cache_shape()));
  const auto window = static_cast<std::int32_t>(
      std::min({flags.context, std::int64_t{engine->info().context}, flags.tokens}));
  const std::int32_t skip = std::min(CalibrateOptions{}.skip, window / 4);
  KVSPAN_TRY(const auto texts, read_texts(flags, *engine, window, skip));
  if (!flags.plots.empty()) KVSPAN_CHECK_OK(make_folders(flags.plots));
  KVSPAN_TRY(const auto calibrations, gather(*engine, texts, window, skip));

  InspectOptions options;
  options.anchor = static_cast<std::int32_t>(flags.anchor);
  // A window has four chunks at least.
  options.chunk = static_cast<std::int32_t>(std::min(
      flags.chunk, std::max<std::int64_t>(
                       1, static_cast<std::int64_t>(texts.front().windows.front().size()) / 4)));
  options.centred = flags.centred;
  options.ranks.assign(flags.ranks.begin(), flags.ranks.end());
  options.layers.assign(flags.layers.begin(), flags.layers.end());
  std::optional<ProgressBar> bar;
  auto inspection = inspect_calibrations(engine->cache_shape(), calibrations, options,
                                         [&](std::size_t done, std::size_t total) {
                                           if (!bar) bar.emplace("inspecting", "layers", total);
                                           bar->update(done);
                                           return !interrupted();
                                         });
  bar.reset();
  if (!inspection) return std::move(inspection).error();

  Json json{{"model", path},
            {"threads", flags.model.threads},
            {"window", window},
            {"skip", skip},
            {"chunk", options.chunk},
            {"anchor", options.anchor},
            {"centred", options.centred},
            {"samples", calibrations.front().sample_positions.size()},
            {"cancelled", inspection->cancelled},
            {"texts", Json::array()}};
  std::vector<std::string> names;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    names.push_back(texts[i].name);
    json["texts"].push_back({{"name", texts[i].name}, {"tokens", calibrations[i].tokens}});
  }
  add_inspection(*inspection, json);
  KVSPAN_CHECK_OK(write_json(json, flags.json));
  if (flags.json != "-") print_tables(*inspection, names);
  if (!flags.plots.empty()) {
    KVSPAN_TRY(const std::size_t count, write_plots(json, flags.plots));
    fmt::print(stderr, "kvspan: {} charts are in {}\n", count, flags.plots);
  }
  return inspection->cancelled ? kInterruptedExit : 0;
}

}  // namespace

Action setup_inspect(CLI::App& app) {
  auto flags = std::make_shared<InspectFlags>();
  add_model_flag(app, flags->model);
  add_thread_flags(app, flags->model);
  add_repeated(app, "-f,--file", flags->files,
               "Text to read; given again, another to compare with (default: the calibration "
               "text). One text is cut into halves",
               "FILE");
  add_integer(app, "--tokens", flags->tokens, "Tokens of each text to read at most", 64, 1 << 26);
  add_integer(app, "-c,--ctx", flags->context, "Tokens of a window, or the model's context", 64,
              1 << 24);
  add_integer(app, "--chunk", flags->chunk,
              "Tokens of a chunk of the first window, a quarter of it at most", 1, 1 << 24);
  add_integer(app, "--anchor", flags->anchor, "Also keys anchored in blocks of so many tokens", 0,
              1 << 20, "0: not");
  add_list(app, "--rank", flags->ranks,
           "Ranks of overlaps, residuals and sensitivities (default: d/8,d/4,d/2)");
  add_list(app, "--layers", flags->layers, "Layers to look at, from 0 (default: all)");
  add_switch(app, "--centred", flags->centred, "Spectra about the mean instead of about 0");
  add_json_flag(app, flags->json);
  add_text(app, "--plots", flags->plots, "Folder for charts as SVG files; made where it is not",
           "DIR");
  set_footer(
      app,
      "Examples:\n"
      "  kvspan inspect -m smollm2 --anchor 64 --json inspect.json\n"
      "  kvspan inspect -m smollm2 --file prose.txt --file code.py --plots plots\n"
      "  kvspan inspect -m stories260k --layers 0,4 --rank 2,4 --json -\n"
      "docs/reference/inspect.md defines every figure; kvspan report makes a page of the JSON.");
  return [flags] { return inspect(*flags); };
}

}  // namespace kvspan::cli
