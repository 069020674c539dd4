// SPDX-License-Identifier: Apache-2.0
#include "method/methods/quant_codes.h"

#include "base/fail.h"
#include "codec/hadamard.h"

namespace kvspan {
namespace {

// [d, d] with orthonormal rows.
Matrix rotation(std::int32_t dim, bool hadamard) {
  const auto d = static_cast<std::size_t>(dim);
  Matrix rows(d, d);
  for (std::size_t i = 0; i < d; ++i) {
    rows(i, i) = 1.0f;
    if (hadamard) hadamard_rotate(rows.row(i), d);
  }
  return rows;
}

// Scales in f16: llama.cpp's grouping along the head, with its arithmetic where it has the type (8
// and 4 bits in groups of 32), else symmetric; one per head or for all of what is coded together;
// KIVI's are asymmetric, per channel for keys and per token for values.
Result<CodecSpec> quant_codec(const RecipePart& method, bool keys) {
  const std::int64_t bits =
      method.has("bits") ? method.count("bits") : method.count(keys ? "kbits" : "vbits");
  const std::string_view layout = method.word("layout");
  std::string text = fmt::format("int{}:", bits);
  if (layout == "group") {
    if (method.count("group") == 32 && bits == 8) return q8_0_spec();
    if (method.count("group") == 32 && bits == 4) return q4_0_spec();
    text += fmt::format("group={}", method.count("group"));
  } else if (layout == "kivi") {
    text += fmt::format("{}={},asym", keys ? "column" : "group", method.count("group"));
  } else {
    text += "tensor";
  }
  return parse_codec_spec(text);
}

}  // namespace

Result<SidePlan> QuantCodes::side(std::int32_t heads, std::int32_t dim, bool keys) {
  SidePlan plan;
  plan.style.domain = keys ? Domain::kPostRopeKey : Domain::kValue;
  plan.style.heads = heads;
  plan.style.dim = dim;
  const std::int32_t width = heads * dim;
  plan.rank.directions = width;
  KVSPAN_TRY(plan.style.codec, quant_codec(method_, keys));
  std::shared_ptr<const Code>& code = codes_[{heads, dim, keys}];
  if (!code) {
    const Matrix basis = rotation(width, method_.word("rotate") == "hadamard");
    KVSPAN_TRY(code, orthonormal_code(plan.style, basis.view(), {}, shared_, MemoryKind::kShared));
  }
  plan.start = code;
  return plan;
}

}  // namespace kvspan
