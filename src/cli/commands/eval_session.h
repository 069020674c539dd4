// SPDX-License-Identifier: Apache-2.0
// What the tasks of `kvspan eval` share: flags, the model, caches of several recipes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "cli/output/json_output.h"
#include "cli/temporary_model.h"
#include "eval/perplexity/perplexity.h"
#include "kvspan/calibration.h"
#include "llama/tokenizer.h"

namespace kvspan::cli {

struct TaskFlags {
  ModelFlags model;
  std::vector<std::string> recipes;
  std::string json;
  std::int64_t limit = 0;  // 0: all there are
  std::int64_t seed = 0;
  std::string weights = "file";
  bool resume = false;

  // `recipes` without the reference, which is measured anyway.
  std::vector<std::string> others(const std::string& reference) const;
};
// -m, -t, --cpu-level, --cache, --seed, --weights, --json, --resume
void add_task_flags(CLI::App& app, TaskFlags& flags);

// --weights: "file", "f32" or "f16".
void add_weights_flag(CLI::App& app, std::string& target);
// The model with its weights in that form; nothing for "file".
Result<std::optional<TemporaryModel>> float_weights(const std::string& path,
                                                    const std::string& weights);

Result<bool> any_needs_calibration(const std::vector<std::string>& recipes);

// Caches of `engine`'s model; both have to outlive it.
CacheSource cache_source(const Engine& engine, const Calibration* calibration);

// A model that Ctrl-C stops, with what the recipes need.
struct EvalSession {
  std::string path;
  std::optional<TemporaryModel> floats;  // what the engine reads, where it is not `path`
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<Calibration> calibration;

  static Result<EvalSession> open(const TaskFlags& flags);
  // Makes the calibration that a recipe needs, where there is none yet, of the model as it is:
  // minutes, so that input is checked before.
  Status calibrate(const TaskFlags& flags);
  // What a run that is gone on from has to share with this one: "task", "fingerprint", "weights",
  // "seed".
  Json identity(const std::string& task, const TaskFlags& flags) const;
  CacheSource caches() const {
    return cache_source(*engine, calibration ? &*calibration : nullptr);
  }
};

// --resume
void add_resume_flag(CLI::App& app, bool& target);
// What the file of --json holds, of a run that asked the same; null where there is none or --resume
// is not given. `identity` is all that has to be the same: the first that differs is refused.
Result<Json> earlier_run(bool resume, const std::string& file, const Json& identity);
// 64 hexadecimal digits, for an identity.
std::string checksum_of(std::string_view text);

// A file of data/tasks, whole and checked.
Result<std::string> read_task_file(const std::string& path);
Result<std::string> task_file_path(const std::string& name);

}  // namespace kvspan::cli
