// SPDX-License-Identifier: Apache-2.0
// A cache's layers as plain tokens: method/layer_tokens.h.
#include <new>
#include <utility>

#include "base/expect.h"
#include "base/fail.h"
#include "cache/visible.h"
#include "method/check_call.h"
#include "method/method_cache.h"

namespace kvspan {
namespace {

// The same error, with the group that it is about.
Error of_group(const Error& error, int layer, std::size_t group) {
  return fail(error.code, "layer {}, group {}: {}", layer, group, error.message);
}

Error is_hosts_alone(int layer) {
  return fail(ErrorCode::kUnsupported,
              "layer {}: selectors, and layers that are coded together, are the host's alone", layer);
}

}  // namespace

bool MethodCache::is_hosts(const Member& member) noexcept {
  return member.selector || member.group.options().follows || !member.group.led().empty();
}

Result<LayerTokens> MethodCache::give(int layer) const {
  KVSPAN_CHECK_OK(check_layer(prepared_->shape, layer));
  const Layer& from = layers_[static_cast<std::size_t>(layer)];
  try {
    LayerTokens tokens;
    for (std::size_t g = 0; g < from.members.size(); ++g) {
      if (is_hosts(from.members[g])) return is_hosts_alone(layer);
      if (const Status added =
              add_group(from.members[g].group, from.members[g].policy.get(), tokens);
          !added) {
        return of_group(added.error(), layer, g);
      }
    }
    return tokens;
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory for a copy of {} tokens", from.next());
  }
}

Status MethodCache::take(int layer, const LayerTokens& tokens) {
  KVSPAN_CHECK_OK(check_layer(prepared_->shape, layer));
  Layer& to = layers_[static_cast<std::size_t>(layer)];
  const LayerShape& shape = prepared_->shape.layers[static_cast<std::size_t>(layer)];
  if (to.next() > 0 || tokens.groups.size() != to.members.size()) {
    return fail(ErrorCode::kInvalidArgument,
                "layer {}: tokens of {} groups for a layer of {} that holds {} tokens; allowed: as "
                "many groups, and a layer that holds none",
                layer, tokens.groups.size(), to.members.size(), to.next());
  }
  try {
    for (std::size_t g = 0; g < to.members.size(); ++g) {
      Member& member = to.members[g];
      if (is_hosts(member)) return is_hosts_alone(layer);
      if (const Status filled = fill_group(tokens, g, member.policy.get(), member.group); !filled) {
        return of_group(filled.error(), layer, g);
      }
      member.forget(first_seen(shape, tokens.next));
      member.group.evicted_before(tokens.least);
    }
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory for {} tokens of layer {}", tokens.next, layer);
  }
  return {};
}

}  // namespace kvspan
