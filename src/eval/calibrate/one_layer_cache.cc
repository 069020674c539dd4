// SPDX-License-Identifier: Apache-2.0
#include "eval/calibrate/one_layer_cache.h"

#include "base/fail.h"

namespace kvspan {

// The exact cache takes the layer's rows too: it counts tokens by what all layers hold.
Status OneLayerCache::append(int layer, const KvRows& rows, Team& team) {
  KVSPAN_CHECK_OK(inner().append(layer, rows, team));
  return layer == layer_ ? one_->append(0, rows, team) : Status();
}

Status OneLayerCache::attend(int layer, const Queries& queries, TensorView<float, 3> out,
                             AttentionScratch& scratch, Team& team) {
  return layer == layer_ ? one_->attend(0, queries, out, scratch, team)
                         : inner().attend(layer, queries, out, scratch, team);
}

Status OneLayerCache::settle(int layer, Team& team) {
  KVSPAN_CHECK_OK(inner().settle(layer, team));
  return layer == layer_ ? one_->settle(0, team) : Status();
}

Status OneLayerCache::truncate(std::int32_t n) {
  KVSPAN_CHECK_OK(one_->truncate(n));
  return inner().truncate(n);
}

void OneLayerCache::clear() {
  one_->clear();
  inner().clear();
}

Result<std::unique_ptr<KvCache>> OneLayerCache::fork() const {
  return fail(ErrorCode::kUnsupported, "a cache for measuring one layer cannot be forked");
}

}  // namespace kvspan
