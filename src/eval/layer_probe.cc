// SPDX-License-Identifier: Apache-2.0
#include "eval/layer_probe.h"

#include "base/fail.h"

namespace kvspan {

// The exact cache takes the rows of all layers: it counts tokens by what they hold.
Status LayerProbe::append(int layer, const KvRows& rows, Team& team) {
  KVSPAN_CHECK_OK(inner().append(layer, rows, team));
  for (std::size_t i = 0; i < coded_.size(); ++i) {
    if (takes(i, layer)) KVSPAN_CHECK_OK(coded_[i].cache->append(0, rows, team));
  }
  return {};
}

Status LayerProbe::attend(int layer, const Queries& queries, TensorView<float, 3> out,
                          AttentionScratch& scratch, Team& team) {
  if (read_ && takes(*read_, layer)) {
    return coded_[*read_].cache->attend(0, queries, out, scratch, team);
  }
  return inner().attend(layer, queries, out, scratch, team);
}

Status LayerProbe::settle(int layer, Team& team) {
  KVSPAN_CHECK_OK(inner().settle(layer, team));
  for (std::size_t i = 0; i < coded_.size(); ++i) {
    if (takes(i, layer)) KVSPAN_CHECK_OK(coded_[i].cache->settle(0, team));
  }
  return {};
}

void LayerProbe::clear() {
  inner().clear();
  for (Coded& coded : coded_) coded.cache->clear();
  prefix_ = true;
  read_.reset();
}

Result<std::unique_ptr<KvCache>> LayerProbe::fork() const {
  return fail(ErrorCode::kUnsupported, "a cache for measuring one layer cannot be forked");
}

}  // namespace kvspan
