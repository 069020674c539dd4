// SPDX-License-Identifier: Apache-2.0
// llama.cpp's own server on kvspan's caches, inside this program. Its sources are untouched: where
// it calls a function of libllama that knows a context's memory, it reaches server_calls.cc instead
// (scripts/join_server.sh), and its routes pass through routes.cc on their way to its HTTP layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvspan/calibration.h"
#include "kvspan/result.h"
#include "llama/thread_choice.h"
#include "server/prefix_blocks.h"

namespace kvspan::server {

class WantedScores;

// How the caches of a model are made.
struct CachePlan {
  std::string recipe = "full";
  std::optional<Calibration> calibration;
};

struct ServeOptions {
  // Asked once for the model that is served, when it has been loaded.
  std::function<Result<CachePlan>(const std::string& model_path)> plan;
  std::size_t kv_budget_bytes = 0;  // of all sequences together; 0: no limit
  std::int64_t answer_tokens = -1;  // of a request that names no number; -1: as long as its context
  bool page = true;                 // kvspan's own, at /
  bool adapt_threads = true;        // one where other programs need the processors
  ProcessClock process_times = kvspan::process_times;
  double kv_wait_seconds = 60;      // that a request waits for bytes before it is answered with 429
  std::shared_ptr<PrefixBlocks> prefix_blocks;  // null: prompts are always computed
  WantedScores* wanted_scores = nullptr;        // null: no prompt is scored
};

// Runs until it is stopped; returns the exit code. `arguments` are llama-server's own, without the
// name of the program. To be called once.
int serve(const std::vector<std::string>& arguments, ServeOptions options);

// Of the running server.
const ServeOptions& serve_options() noexcept;

}  // namespace kvspan::server
