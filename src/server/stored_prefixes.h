// SPDX-License-Identifier: Apache-2.0
// Beginnings of prompts from a store that servers share, and to it.
//
// The server decodes a prompt batch by batch and tells of each when it comes. A cache from the store
// may hold more tokens than the first batch: it is kept until the prompt is read or goes another way, so
// that it is loaded once.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/prefix_blocks.h"
#include "store/prefix_store.h"
#include "store/store_reader.h"
#include "store/store_writer.h"

namespace kvspan::server {

class StoredPrefixes final : public PrefixBlocks {
 public:
  // How long a prompt waits for the store, unless said otherwise.
  static constexpr std::chrono::milliseconds kPatience{500};

  StoredPrefixes(std::unique_ptr<Blobs> blobs, std::string name_space,
                 std::chrono::milliseconds patience = kPatience);

  // What caches are made for, before the first of them is loaded or saved.
  void set_model(std::string fingerprint, std::string calibration);

  void load(LlamaCaches& caches, std::int32_t sequence,
            std::span<const std::int32_t> tokens) override;
  void save(const LlamaCaches& caches, std::int32_t sequence,
            std::span<const std::int32_t> tokens, bool prompt_ends) override;
  StoreStatistics statistics() const override;

 private:
  struct Sequence {
    std::int32_t known = 0;  // first tokens of it that are in the store
    // A cache that began like this sequence when it was last looked at, and the keys of its blocks.
    std::unique_ptr<KvCache> ahead;
    std::vector<std::string> chain;
  };
  PrefixStore& store(const LlamaCaches& caches);
  // Goes on with the cache that is ahead, as far as the tokens are its own.
  bool take_ahead(LlamaCaches& caches, std::int32_t sequence,
                  std::span<const std::int32_t> tokens);

  std::unique_ptr<Blobs> blobs_;  // until there is a store
  StoreIdentity identity_;
  mutable std::mutex mutex_;  // of the pointer to the store
  const std::chrono::milliseconds patience_;
  std::unique_ptr<PrefixStore> store_;
  std::unique_ptr<StoreReader> reader_;
  std::unique_ptr<StoreWriter> writer_;
  std::map<std::int32_t, Sequence> sequences_;
};

}  // namespace kvspan::server
