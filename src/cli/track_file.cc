// SPDX-License-Identifier: Apache-2.0
#include "cli/track_file.h"

#include "base/fail.h"
#include "cli/json_output.h"
#include "io/atomic_file.h"

namespace kvspan::cli {

std::string track_line(const TrackedStep& step) {
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
  return json.dump();
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
               *lines += track_line(step) + "\n";
             }));
  return {};
}

Status TrackFile::write() const {
  return path_.empty() ? Status() : write_file(path_, std::string_view(*lines_));
}

}  // namespace kvspan::cli
