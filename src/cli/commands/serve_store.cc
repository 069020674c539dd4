// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/serve_store.h"

#include <charconv>
#include <cmath>
#include <string_view>

#include "base/fail.h"
#include "io/atomic_file.h"
#include "io/sha256.h"
#include "llama/file_fingerprint.h"
#include "store/open_store.h"

namespace kvspan::cli {
namespace {

Result<std::int64_t> ttl_of(const std::string& text) {
  if (text.empty()) return kStoreTtlSeconds;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    return fail(ErrorCode::kInvalidArgument, "--store-ttl {}; allowed: whole seconds from 1 on", text);
  }
  return value;
}

std::string_view name_of_flag(const std::string& word) {
  return std::string_view(word).substr(0, word.find('='));
}

}  // namespace

Result<double> seconds_of(std::string_view flag, const std::string& text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0.0 && value <= 86400.0)) {
    return fail(ErrorCode::kInvalidArgument, "{} {}; allowed: seconds from 0 to 86400", flag, text);
  }
  return value;
}

Result<std::shared_ptr<server::StoredPrefixes>> open_prefix_store(const StoreFlags& flags,
                                                                  const std::vector<std::string>& server_flags) {
  if (flags.place.empty()) {
    const bool others = !flags.name_space.empty() || !flags.ttl.empty() || !flags.wait.empty();
    if (!others) return std::shared_ptr<server::StoredPrefixes>();
    return fail(ErrorCode::kInvalidArgument, "--store-namespace, --store-ttl and --store-wait need --store");
  }
  for (const std::string& word : server_flags) {
    // Adapters can be changed while the server runs, so that no name could stand for what they compute.
    if (name_of_flag(word).starts_with("--lora") || name_of_flag(word).starts_with("--control-vector")) {
      return fail(ErrorCode::kUnsupported, "--store does not go with {}: what it keeps is of the model alone",
                  name_of_flag(word));
    }
  }
  KVSPAN_TRY(const std::int64_t ttl, ttl_of(flags.ttl));
  std::chrono::milliseconds patience = server::StoredPrefixes::kPatience;
  if (!flags.wait.empty()) {
    KVSPAN_TRY(const double seconds, seconds_of("--store-wait", flags.wait));
    patience = std::chrono::milliseconds(std::lround(1000.0 * seconds));
  }
  KVSPAN_TRY(auto blobs, open_blobs(flags.place, ttl));
  return std::make_shared<server::StoredPrefixes>(std::move(blobs), flags.name_space, patience);
}

Status name_model(server::StoredPrefixes& store, const std::string& model_path, const server::CachePlan& plan,
                  const std::vector<std::string>& server_flags) {
  KVSPAN_TRY(std::string model, file_fingerprint(model_path));
  for (std::size_t i = 0; i < server_flags.size(); ++i) {
    const std::string_view name = name_of_flag(server_flags[i]);
    if (!name.starts_with("--rope") && !name.starts_with("--yarn") && name != "--override-kv") continue;
    model += "\n" + server_flags[i];
    if (name.size() == server_flags[i].size() && i + 1 < server_flags.size()) model += "=" + server_flags[i + 1];
  }
  std::string calibration;
  if (plan.calibration) {
    KVSPAN_TRY(const std::vector<std::byte> bytes, read_file(plan.calibration->source));
    Sha256 hash;
    hash.add(bytes);
    calibration = hash.finish();
  }
  store.set_model(std::move(model), std::move(calibration));
  return {};
}

}  // namespace kvspan::cli
