// SPDX-License-Identifier: Apache-2.0
// The prefix store of kvspan serve, from its flags.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvspan/result.h"
#include "server/serve.h"
#include "server/stored_prefixes.h"

namespace kvspan::cli {

struct StoreFlags {
  std::string place;       // of --store; empty: none
  std::string name_space;  // of --store-namespace
  std::string ttl;         // of --store-ttl; empty: the default
  std::string wait;        // of --store-wait; empty: the default
};

// A time that a flag names.
Result<double> seconds_of(std::string_view flag, const std::string& text);

// Null where no store is asked for. Fails where the place is none, and where one of the server's own
// flags makes caches that depend on more than model, recipe and calibration.
Result<std::shared_ptr<server::StoredPrefixes>> open_prefix_store(const StoreFlags& flags,
                                                                  const std::vector<std::string>& server_flags);

// Tells the store which model its caches are of. `server_flags` that change how a model computes count too.
Status name_model(server::StoredPrefixes& store, const std::string& model_path, const server::CachePlan& plan,
                  const std::vector<std::string>& server_flags);

}  // namespace kvspan::cli
