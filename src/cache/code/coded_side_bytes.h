// SPDX-License-Identifier: Apache-2.0
// A coded side as bytes: payload, scales and residual norms bit for bit. Format:
// docs/reference/formats/cache.md.
#pragma once

#include <memory>

#include "cache/code/code_bytes.h"
#include "cache/code/coded_side.h"

namespace kvspan {

struct CodedSideBytes {
  static void write(const CodedSide& side, CodeWriter& codes, ByteWriter& out);
  // For `heads` heads of `dim` numbers; at least `tokens` tokens. Every coefficient is decoded once
  // and must be finite.
  static Result<std::shared_ptr<const CodedSide>> read(bool keys, std::int32_t heads,
                                                       std::int32_t dim, std::int32_t tokens,
                                                       CodeReader& codes, ByteReader& in,
                                                       const std::shared_ptr<Ledger>& ledger);

 private:
  static Status read_part(CodedSide::Part& part, std::int32_t tokens, ByteReader& in,
                          const std::shared_ptr<Ledger>& ledger);
};

}  // namespace kvspan
