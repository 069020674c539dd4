// SPDX-License-Identifier: Apache-2.0
// Other states of the same cache: copies, shorter ones, and the empty one.
#include <algorithm>
#include <new>
#include <utility>

#include "base/fail.h"
#include "method/method_cache.h"

namespace kvspan {

MethodCache::MethodCache(const MethodCache& other)
    : KvCache(other), prepared_(other.prepared_), ledger_(other.ledger_), layers_(other.layers_) {
  link_layers();
}

void MethodCache::link_layers() {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const std::size_t led = prepared_->layers[l].layers_led;
    for (std::size_t g = 0; led > 0 && g < layers_[l].members.size(); ++g) {
      std::vector<Group*> earlier;
      for (std::size_t i = l - led; i < l; ++i) earlier.push_back(&layers_[i].members[g].group);
      layers_[l].members[g].group.lead(std::move(earlier));
    }
  }
  share_stores();
}

void MethodCache::share_stores() noexcept {
  for (Layer& layer : layers_) {
    for (Member& member : layer.members) {
      if (!member.group.led().empty()) member.policy->share_store(member.group);
    }
  }
}

Status MethodCache::truncate(std::int32_t n) {
  if (n <= 0) {
    try {
      clear();
      return {};
    } catch (const std::bad_alloc&) {
      return fail(ErrorCode::kOutOfBudget, "no memory to begin anew after {} tokens", tokens());
    }
  }
  if (n < tokens() && n < least_tokens()) {
    return fail(ErrorCode::kInvalidArgument,
                "cannot go back to {} tokens: {} has dropped some because of those up to {}; "
                "allowed: 0, or {} and more",
                n, prepared_->recipe, least_tokens(), least_tokens());
  }
  // What has to be rebuilt is, before anything is touched.
  std::vector<std::pair<Group*, Group>> rebuilt;
  try {
    for (Layer& layer : layers_) {
      for (Member& member : layer.members) {
        if (layer.next() <= n || member.group.cut_at(n) == n) continue;
        rebuilt.emplace_back(&member.group, member.group.truncated(n));
      }
    }
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory to go back from {} to {} tokens", tokens(), n);
  }
  for (Layer& layer : layers_) {
    if (layer.next() <= n) continue;
    for (Member& member : layer.members) {
      if (member.policy) member.policy->truncate(member.group, n);
      if (member.selector) member.selector->truncate(member.group, n);
    }
  }
  for (auto& [group, copy] : rebuilt) group->become(copy);
  share_stores();
  for (Layer& layer : layers_) {
    for (Member& member : layer.members) member.group.truncate(n);
  }
  return {};
}

std::int32_t MethodCache::least_tokens() const noexcept {
  std::int32_t least = 1;
  for (const Layer& layer : layers_) {
    for (const Member& member : layer.members) least = std::max(least, member.group.extent().evicted_end);
  }
  return std::min(least, std::max(tokens(), 1));
}

void MethodCache::clear() {
  MethodCache anew(prepared_);
  layers_ = std::move(anew.layers_);
  ledger_ = std::move(anew.ledger_);
}

Result<std::unique_ptr<KvCache>> MethodCache::fork() const {
  try {
    return std::unique_ptr<KvCache>(new MethodCache(*this));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory for a copy of {} tokens", tokens());
  }
}

}  // namespace kvspan
