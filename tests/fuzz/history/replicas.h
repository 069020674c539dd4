// SPDX-License-Identifier: Apache-2.0
// Caches that had the same history in different ways: made new, forked, saved and loaded, with other
// numbers of threads. All do what one does, and are equal to the last bit.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kvspan/cache.h"

namespace kvspan::fuzz {

class Replicas {
 public:
  explicit Replicas(std::unique_ptr<KvCache> first) { add(std::move(first), 1, "new"); }

  KvCache& first() noexcept { return *members_.front().cache; }
  std::size_t size() const noexcept { return members_.size(); }
  // `how` stands in messages. Beyond three, the latest but the first goes.
  void add(std::unique_ptr<KvCache> cache, int threads, std::string how);
  void replace_first(std::unique_ptr<KvCache> cache, std::string how);

  // Makes a call of every one, by its threads; all must succeed, or all fail.
  void call(const std::string& what, const std::function<Status(KvCache&, Team&)>& call);
  void refuse(const std::string& what, const std::function<Status(KvCache&, Team&)>& call);
  // What a call of every one writes, the same for all.
  std::vector<float> outputs(const std::string& what, std::size_t numbers,
                             const std::function<Status(KvCache&, Team&, float* out)>& call);

  // Tokens, lengths to go back to, saved bytes; and what each says of its bytes. `alone`: no fork shares memory with
  // them, so that the ledger is theirs.
  void compare(bool alone) const;

 private:
  struct Member {
    std::unique_ptr<KvCache> cache;
    int threads;
    std::string how;
  };
  static Status run(Member& member, const std::function<Status(KvCache&, Team&)>& call);

  std::vector<Member> members_;
};

// What save() gives; broken where it fails.
std::vector<std::byte> saved(const KvCache& cache);

}  // namespace kvspan::fuzz
