// SPDX-License-Identifier: Apache-2.0
#include "method/bands/bands_parts.h"

namespace kvspan {

BandsParts bands_parts(const LayerShape& layer, std::int32_t heads, bool keys, bool values,
                       const BandsOptions& options) {
  BandsParts parts;
  parts.heads = heads;
  parts.key_dim = keys ? layer.key_dim : 0;
  parts.value_dim = values ? layer.value_dim : 0;
  parts.anchor_block = keys ? options.anchor : 0;
  parts.before_rope = keys && options.before_rope;
  if (options.before_rope || options.anchor > 0) parts.rope = layer.rope;
  parts.gain = options.gain;
  parts.quantizer = options.quantizer;
  return parts;
}

}  // namespace kvspan
