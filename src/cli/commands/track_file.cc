// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/track_file.h"

#include "base/fail.h"
#include "io/atomic_file.h"

namespace kvspan::cli {

Json track_json(const TrackedStep& step) {
  Json json;
  json["layer"] = step.layer;
  json["position"] = step.position;
  json["tokens"] = step.tokens;
  json["read"] = step.read;
  json["logit_error"] = step.logit_error;
  json["output_error"] = step.output_error;
  json["output_norm"] = step.output_norm;
  json["attention_correlation"] = step.correlation;
  json["top10_overlap"] = step.top10_overlap;
  if (step.bound) {
    json["logit_bound"] = step.bound->logits;
    json["weight_bound"] = step.bound->weights;
    json["output_bound"] = step.bound->output;
  }
  if (step.key_delta) json["key_delta"] = *step.key_delta;
  if (step.value_delta) json["value_delta"] = *step.value_delta;
  return json;
}

TrackedStep track_from(const Json& json) {
  TrackedStep step;
  step.layer = json.at("layer").get<int>();
  step.position = json.at("position").get<std::int32_t>();
  step.tokens = json.at("tokens").get<std::int32_t>();
  step.read = json.at("read").get<std::int32_t>();
  step.logit_error = json.at("logit_error").get<double>();
  step.output_error = json.at("output_error").get<double>();
  step.output_norm = json.at("output_norm").get<double>();
  step.correlation = json.at("attention_correlation").get<double>();
  step.top10_overlap = json.at("top10_overlap").get<double>();
  if (json.contains("logit_bound")) {
    step.bound.emplace();
    step.bound->logits = json["logit_bound"].get<double>();
    step.bound->weights = json.at("weight_bound").get<double>();
    step.bound->output = json.at("output_bound").get<double>();
  }
  if (json.contains("key_delta")) step.key_delta = json["key_delta"].get<double>();
  if (json.contains("value_delta")) step.value_delta = json["value_delta"].get<double>();
  return step;
}

Result<TrackFile> TrackFile::create(const std::string& path) {
  TrackFile file;
  file.path_ = path;
  if (path == "-") {
    return fail(ErrorCode::kInvalidArgument,
                "--track: '-' is not a file; the answer goes to standard output");
  }
  KVSPAN_CHECK_OK(check_json_target(path));
  return file;
}

Status TrackFile::watch(std::unique_ptr<KvCache>& cache) {
  if (path_.empty()) return {};
  KVSPAN_TRY(cache, TrackingCache::create(std::move(cache), [lines = lines_](const auto& step) {
               *lines += track_json(step).dump() + "\n";
             }));
  return {};
}

Status TrackFile::write() const {
  return path_.empty() ? Status() : write_file(path_, std::string_view(*lines_));
}

}  // namespace kvspan::cli
