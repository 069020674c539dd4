// SPDX-License-Identifier: Apache-2.0
// --track: tracked errors as JSON lines, one for each layer and step.
#pragma once

#include <memory>
#include <string>

#include "cli/output/json_output.h"
#include "eval/study/tracking_cache.h"

namespace kvspan::cli {

class TrackFile {
 public:
  // Empty path: nothing is tracked. Fails, before long work, where the folder is not there.
  static Result<TrackFile> create(const std::string& path);
  // Replaces an empty cache by one that is tracked.
  Status watch(std::unique_ptr<KvCache>& cache);
  // Writes what has been tracked; the file appears complete or not at all.
  Status write() const;

 private:
  std::string path_;
  std::shared_ptr<std::string> lines_ = std::make_shared<std::string>();
};

// layer, position, tokens, read, logit_error, output_error, output_norm, attention_correlation,
// top10_overlap; logit_bound, weight_bound, output_bound where certified; key_delta and value_delta
// of fd.
Json track_json(const TrackedStep& step);
// Throws as the JSON library does on what track_json does not write.
TrackedStep track_from(const Json& json);

}  // namespace kvspan::cli
