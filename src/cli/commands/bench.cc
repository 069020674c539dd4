// SPDX-License-Identifier: Apache-2.0
// kvspan bench: speed and memory by context depth, beside llama.cpp where asked.
#include "eval/bench/bench.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/cpu_level.h"
#include "base/fail.h"
#include "cli/calibration.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/measured_text.h"
#include "cli/model_path.h"
#include "cli/output/format.h"
#include "cli/output/json_output.h"
#include "cli/output/progress_bar.h"
#include "cli/output/table.h"
#include "cli/output/voice.h"
#include "eval/bench/break_even.h"
#include "eval/bench/memory_bandwidth.h"

namespace kvspan::cli {
namespace {

// Interquartile range over median from which single figures should not be trusted.
constexpr double kNoisy = 0.15;

struct BenchFlags {
  ModelFlags model;
  std::vector<std::string> recipes{"full"};
  std::vector<std::int64_t> depths;  // none: usual_depths
  std::string peer;
  std::vector<std::string> peer_kv{"f16"};
  std::string file;
  std::string json;
  std::int64_t repeats = 24;
  std::int64_t batch = 1;
};

// What the machine and the model set beside the rows.
struct Roof {
  double memory_bytes_s = 0.0;
  std::size_t weight_bytes = 0;
  int batch = 1;

  // A decoded token reads the weights and its cache once at least; sequences of a batch share the
  // weights.
  double bytes_per_token(const BenchRow& row) const {
    return (static_cast<double>(weight_bytes) + static_cast<double>(row.kv_bytes)) / batch;
  }
  double share(const BenchRow& row) const {
    return memory_bytes_s > 0.0 ? bytes_per_token(row) * row.decode_tok_s / memory_bytes_s : 0.0;
  }
};

// From which depth a recipe decodes faster than full.
struct FasterFrom {
  std::string recipe;
  std::optional<BreakEven> depth;
};
std::vector<FasterFrom> break_evens(const std::vector<BenchRow>& rows) {
  std::vector<FasterFrom> out;
  std::map<std::string, std::vector<CostPoint>> points;
  for (const BenchRow& row : rows) {
    for (const BenchRow& full : rows) {
      if (row.depth == full.depth && row.subject.engine == "kvspan" &&
          full.subject.engine == "kvspan" && full.subject.recipe == "full" &&
          row.subject.recipe != "full") {
        points[row.subject.recipe].push_back(
            {static_cast<double>(row.depth), 1.0 / row.decode_tok_s, 1.0 / full.decode_tok_s});
      }
    }
  }
  for (const auto& [recipe, known] : points) {
    if (known.size() > 1) out.push_back({recipe, break_even(known)});
  }
  return out;
}

std::string break_even_text(const FasterFrom& found) {
  if (!found.depth) return fmt::format("{} does not get faster than full\n", found.recipe);
  return fmt::format("{} is faster than full from {} tokens{}\n", found.recipe,
                     format_count(static_cast<std::uint64_t>(found.depth->length + 0.5)),
                     found.depth->extrapolated ? " (beyond what was measured)" : " on");
}

// Depths that are measured where none is named: these, as far as the model goes, and half of its
// context where that is short.
std::vector<std::int64_t> usual_depths(std::int32_t context) {
  std::vector<std::int64_t> depths;
  for (const std::int64_t depth : {16, 2048, 8100}) {
    if (depth < context) depths.push_back(depth);
  }
  if (depths.size() < 2 && context >= 64) depths.push_back(context / 2);
  return depths;
}

Status check(const BenchFlags& flags, std::int32_t context) {
  for (std::size_t i = 0; i < flags.depths.size(); ++i) {
    const std::int64_t depth = flags.depths[i];
    if (depth < 1 || depth >= context) {
      return fail(ErrorCode::kInvalidArgument,
                  "--depth {}: allowed are 1 to {} (the model's context)", depth, context - 1);
    }
    if (i > 0 && depth <= flags.depths[i - 1]) {
      return fail(ErrorCode::kInvalidArgument, "--depth {} after {}: depths must increase", depth,
                  flags.depths[i - 1]);
    }
  }
  return {};
}

// The ratio of a row to llama.cpp's f16 row of the same depth; 0 without one.
struct Ratios {
  double decode = 0.0, prefill = 0.0;
};
Ratios against_peer(const std::vector<BenchRow>& rows, const BenchRow& row) {
  for (const BenchRow& other : rows) {
    if (other.depth == row.depth && other.subject.engine == "llama.cpp" &&
        other.subject.recipe == "f16") {
      return {row.decode_tok_s / other.decode_tok_s, row.prefill_tok_s / other.prefill_tok_s};
    }
  }
  return {};
}

// The row of the full cache at the same depth; null without one, and for itself.
const BenchRow* full_row(const std::vector<BenchRow>& rows, const BenchRow& row) {
  for (const BenchRow& other : rows) {
    if (other.depth == row.depth && other.subject.engine == "kvspan" &&
        other.subject.recipe == "full" && row.subject.engine == "kvspan" &&
        row.subject.recipe != "full") {
      return &other;
    }
  }
  return nullptr;
}

// "124 of 131 MiB": what the process saves of what the ledger says.
std::string saved_text(const std::vector<BenchRow>& rows, const BenchRow& row) {
  const BenchRow* full = full_row(rows, row);
  if (full == nullptr) return "-";
  const MemoryLess less = memory_less(*full, row);
  return fmt::format("{:.1f} of {:.1f} MiB", less.measured_bytes / 1048576.0,
                     less.counted_bytes / 1048576.0);
}

Json to_json(const std::vector<BenchRow>& rows, const BenchRow& row, const Roof& roof) {
  Json json{{"engine", row.subject.engine},
            {"recipe", row.subject.recipe},
            {"depth", row.depth},
            {"decode_tok_s", row.decode_tok_s},
            {"decode_spread", row.decode_spread},
            {"prefill_tok_s", row.prefill_tok_s},
            {"kv_bytes", row.kv_bytes},
            {"kv_bytes_full", row.kv_bytes_full},
            {"kv_ratio", ratio_or_null(static_cast<double>(row.kv_bytes_full),
                                       static_cast<double>(row.kv_bytes))},
            {"bytes_read_per_token", roof.bytes_per_token(row)},
            {"read_bytes_s", roof.bytes_per_token(row) * row.decode_tok_s},
            {"roofline", roof.share(row)},
            {"shared_bytes", row.shared_bytes},
            {"peak_rss_bytes", row.peak_rss_bytes}};
  if (!row.code.empty()) json["code"] = row.code;
  if (const BenchRow* full = full_row(rows, row)) {
    const MemoryLess less = memory_less(*full, row);
    json["peak_less_than_full_bytes"] = less.measured_bytes;
    json["counted_less_than_full_bytes"] = less.counted_bytes;
  }
  if (row.attn_ms > 0.0) json["attn_ms"] = row.attn_ms;
  const Ratios ratios = against_peer(rows, row);
  if (ratios.decode > 0.0) {
    json["decode_vs_llama_f16"] = ratios.decode;
    json["prefill_vs_llama_f16"] = ratios.prefill;
  }
  return json;
}

std::string table_of(const std::vector<BenchRow>& rows, const Roof& roof) {
  using enum Table::Align;
  Table table({{"depth", kRight},
               {"engine"},
               {"recipe"},
               {"decode tok/s", kRight},
               {"spread", kRight},
               {"of roof", kRight},
               {"vs f16", kRight},
               {"attention ms", kRight},
               {"prefill tok/s", kRight},
               {"vs f16", kRight},
               {"KV", kRight},
               {"codes", kRight},
               {"peak memory", kRight},
               {"saved of counted", kRight}});
  const auto ratio = [](double x) {
    return x > 0.0 ? fmt::format("{:.2f}x", x) : std::string("-");
  };
  for (const BenchRow& row : rows) {
    const Ratios ratios = against_peer(rows, row);
    table.add_row({std::to_string(row.depth), row.subject.engine, row.subject.recipe,
                   fmt::format("{:.1f}", row.decode_tok_s),
                   fmt::format("{:.0f} %", 100.0 * row.decode_spread),
                   fmt::format("{:.0f} %", 100.0 * roof.share(row)), ratio(ratios.decode),
                   row.attn_ms > 0.0 ? fmt::format("{:.2f}", row.attn_ms) : "-",
                   fmt::format("{:.1f}", row.prefill_tok_s), ratio(ratios.prefill),
                   format_bytes(row.kv_bytes),
                   row.shared_bytes > 0 ? format_bytes(row.shared_bytes) : "-",
                   format_bytes(row.peak_rss_bytes), saved_text(rows, row)});
  }
  return table.text();
}

// What is measured; fills in the depths and the weights' bytes, which the model decides.
Result<BenchOptions> bench_options(BenchFlags& flags, Roof& roof) {
  BenchOptions options;
  KVSPAN_TRY(options.model_path, find_model_path(flags.model.model));
  {
    // To know the model, and to calibrate it where that is missing; it must be gone before the benchmark's processes
    // start.
    KVSPAN_TRY(const auto engine, Engine::load(options.model_path, {static_cast<int>(flags.model.threads)}));
    if (flags.depths.empty()) flags.depths = usual_depths(engine->info().context);
    KVSPAN_CHECK_OK(check(flags, engine->info().context));
    roof.weight_bytes = engine->info().weight_bytes;
    for (const std::string& recipe : flags.recipes) {
      KVSPAN_TRY(const auto cache, new_cache(*engine, recipe));
      options.subjects.push_back({"kvspan", cache->recipe()});
      say_details(CodeNote().line(*cache));
    }
  }
  if (!flags.peer.empty()) {
    for (const std::string& type : flags.peer_kv) options.subjects.push_back({"llama.cpp", type});
  }
  options.depths.assign(flags.depths.begin(), flags.depths.end());
  options.threads = static_cast<int>(flags.model.threads);
  options.repeats = static_cast<int>(flags.repeats);
  options.batch = roof.batch = static_cast<int>(flags.batch);
  KVSPAN_TRY(options.gpu_layers, flags.model.device.layers());
  fmt::print(stderr, "{}", flags.model.device.note());
  // Some recipes cannot go back after a step, and end that much deeper (eval/bench/bench_worker.cc).
  const auto needed = static_cast<std::size_t>(options.depths.back()) + 1 +
                      options.depths.size() * 2 * static_cast<std::size_t>(options.repeats);
  options.context = static_cast<std::int32_t>((needed + 255) / 256 * 256);
  KVSPAN_TRY(options.tokens, measured_tokens(options.model_path, flags.file, needed));
  return options;
}

Json bench_json(const BenchOptions& options, const Roof& roof, const std::vector<BenchRow>& rows,
                const std::vector<FasterFrom>& faster, bool noisy) {
  Json json{{"model", options.model_path},
            {"threads", options.threads},
            {"batch", options.batch},
            {"gpu_layers", options.gpu_layers},
            {"memory_bytes_s", roof.memory_bytes_s},
            {"weight_bytes", roof.weight_bytes},
            {"cpu_level", std::string(name_of(cpu_level()))},
            {"repeats", options.repeats},
            {"rows", Json::array()},
            {"noisy", noisy},
            {"break_even", Json::array()}};
  for (const BenchRow& row : rows) json["rows"].push_back(to_json(rows, row, roof));
  for (const FasterFrom& found : faster) {
    json["break_even"].push_back({{"recipe", found.recipe},
                                  {"against", "full"},
                                  {"tokens", found.depth ? Json(found.depth->length) : Json()},
                                  {"extrapolated", found.depth && found.depth->extrapolated}});
  }
  return json;
}

Result<int> bench(BenchFlags flags) {
  KVSPAN_CHECK_OK(check_json_target(flags.json));
  KVSPAN_CHECK_OK(apply_cpu_level(flags.model));
  Roof roof;
  KVSPAN_TRY(const BenchOptions options, bench_options(flags, roof));
  std::unique_ptr<ProgressBar> bar;
  auto rows = run_bench(options, [&](std::size_t done, std::size_t total, std::string_view) {
    if (!bar) bar = std::make_unique<ProgressBar>("measuring", "steps", total);
    bar->update(done);
  });
  bar.reset();
  if (!rows) return std::move(rows).error();
  roof.memory_bytes_s = memory_bytes_per_second(options.threads);

  const bool noisy = std::any_of(rows->begin(), rows->end(),
                                 [](const BenchRow& row) { return row.decode_spread > kNoisy; });
  const std::vector<FasterFrom> faster = break_evens(*rows);
  KVSPAN_CHECK_OK(write_json(bench_json(options, roof, *rows, faster, noisy), flags.json));
  if (flags.json != "-") {
    fmt::print("{}\nmemory gives {:.1f} GB/s to {} threads\n", table_of(*rows, roof),
               1e-9 * roof.memory_bytes_s, options.threads);
    for (const FasterFrom& found : faster) fmt::print("{}", break_even_text(found));
  }
  if (noisy) {
    fmt::print(
        stderr,
        "kvspan: the machine is noisy (spread over {:.0f} %): compare ratios, not figures, and "
        "conclude nothing from small ones\n",
        100.0 * kNoisy);
  }
  return 0;
}

}  // namespace

Action setup_bench(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  add_model_flag(app, flags->model);
  add_thread_flags(app, flags->model);
  add_device_flags(app, flags->model.device);
  add_recipe_flag(app, "--cache", flags->recipes, "Recipes to measure (see kvspan methods)");
  add_list(app, "--depth", flags->depths,
           "Context depths, increasing; default: 16, 2048 and 8100, as far as the model goes");
  add_choice(app, "--peer", flags->peer, "Measure another engine in the same run", {"llama.cpp"});
  add_list(app, "--peer-kv", flags->peer_kv, "KV types of llama.cpp: f32, f16, q8_0, q4_0");
  add_measured_text_flag(app, flags->file);
  add_integer(app, "--repeats", flags->repeats, "Timed decodes at each depth", 1, 100000);
  add_integer(app, "--batch", flags->batch, "Sequences decoded together, each of that depth", 1,
              512);
  add_json_flag(app, flags->json);
  set_footer(
      app,
      "Examples:\n"
      "  kvspan bench -m smollm2 --depth 16,2048,8100 --cache full --peer llama.cpp\n"
      "  kvspan bench -m smollm2 --depth 512 --cache full --cache full:store=f32 --json -\n"
      "  kvspan bench -m smollm2 --depth 4096 --peer llama.cpp --peer-kv f16,q8_0,q4_0\n"
      "  kvspan bench -m smollm2 --depth 2048 --cache full --cache bands --batch 8\n"
      "  kvspan bench -m smollm2 --depth 8000 --device cuda --batch 64 --peer llama.cpp\n"
      "Engines run in processes of their own and take turns; a decode's time is the median.\n"
      "Peak memory is the process's (VmHWM); 'saved of counted': how much lower it is than that "
      "of\n"
      "full at this depth, and how much less cache and codes the ledger counts.");
  return [flags] { return bench(*flags); };
}

}  // namespace kvspan::cli
