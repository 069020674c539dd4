// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/history/replicas.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "method/method_cache.h"
#include "tests/fuzz/target.h"

namespace kvspan::fuzz {
namespace {

constexpr std::size_t kMost = 3;

ThreadPool& pool(int threads) {
  static ThreadPool one(1), two(2), three(3);
  return threads == 1 ? one : threads == 2 ? two : three;
}

// Bytes by kind, by layer and as the ledger counts them are the same.
void check_bytes(const KvCache& cache, const std::string& how, bool alone) {
  const CacheBytes bytes = cache.bytes();
  const std::size_t sum =
      bytes.full_rank + bytes.coefficients + bytes.scales + bytes.bases + bytes.sketches + bytes.positions;
  must(sum == bytes.total, "{}: parts of bytes() sum to {}, the total is {}", how, sum, bytes.total);
  const auto* const own = dynamic_cast<const MethodCache*>(&cache);
  if (own == nullptr) return;
  const std::vector<std::size_t> layers = own->layer_bytes();
  const std::size_t by_layer = std::accumulate(layers.begin(), layers.end(), std::size_t{0});
  must(by_layer == bytes.total, "{}: bytes of layers sum to {}, the total is {}", how, by_layer, bytes.total);
  must(!alone || own->ledger()->total() == bytes.total, "{}: the ledger has {} bytes, bytes() says {}", how,
       own->ledger()->total(), bytes.total);
}

}  // namespace

std::vector<std::byte> saved(const KvCache& cache) {
  auto bytes = cache.save();
  must(bytes.has_value(), "save fails: {}", bytes ? "" : bytes.error().message);
  return *std::move(bytes);
}

void Replicas::add(std::unique_ptr<KvCache> cache, int threads, std::string how) {
  if (members_.size() == kMost) members_.pop_back();
  members_.push_back({std::move(cache), threads, std::move(how)});
}

void Replicas::replace_first(std::unique_ptr<KvCache> cache, std::string how) {
  members_.front() = {std::move(cache), members_.front().threads, std::move(how)};
}

Status Replicas::run(Member& member, const std::function<Status(KvCache&, Team&)>& call) {
  Status outcome;
  pool(member.threads).run([&](Team& team) {
    Status own = call(*member.cache, team);
    if (team.leader()) outcome = std::move(own);
  });
  return outcome;
}

void Replicas::call(const std::string& what, const std::function<Status(KvCache&, Team&)>& call) {
  for (Member& member : members_) {
    const Status status = run(member, call);
    must(status.has_value(), "{} ({}): {}", what, member.how, status ? "" : status.error().message);
  }
}

void Replicas::refuse(const std::string& what, const std::function<Status(KvCache&, Team&)>& call) {
  for (Member& member : members_) {
    const auto before = saved(*member.cache);
    must(!run(member, call).has_value(), "{} ({}) is accepted", what, member.how);
    must(saved(*member.cache) == before, "{} ({}) is refused and changes the cache", what, member.how);
  }
}

std::vector<float> Replicas::outputs(const std::string& what, std::size_t numbers,
                                     const std::function<Status(KvCache&, Team&, float*)>& call) {
  std::vector<float> first;
  for (Member& member : members_) {
    std::vector<float> out(numbers, -77.0f);
    const Status status = run(member, [&](KvCache& cache, Team& team) { return call(cache, team, out.data()); });
    must(status.has_value(), "{} ({}): {}", what, member.how, status ? "" : status.error().message);
    for (std::size_t i = 0; i < numbers; ++i) {
      must(std::isfinite(out[i]), "{} ({}): number {} is {}", what, member.how, i, out[i]);
      must(first.empty() || std::memcmp(&out[i], &first[i], sizeof(float)) == 0, "{}: number {} is {} ({}, {} threads) and {} ({})",
           what, i, out[i], member.how, member.threads, first.empty() ? 0.0f : first[i], members_.front().how);
    }
    if (first.empty()) first = std::move(out);
  }
  return first;
}

void Replicas::compare(bool alone) const {
  const KvCache& first = *members_.front().cache;
  const auto bytes = saved(first);
  for (const Member& member : members_) {
    check_bytes(*member.cache, member.how, alone);
    must(member.cache->tokens() == first.tokens(), "{} tokens ({}) and {}", member.cache->tokens(), member.how, first.tokens());
    must(member.cache->least_tokens() == first.least_tokens(), "least_tokens {} ({}) and {}", member.cache->least_tokens(),
         member.how, first.least_tokens());
    must(saved(*member.cache) == bytes, "saved bytes differ: {}, {}", member.how, members_.front().how);
  }
}

}  // namespace kvspan::fuzz
