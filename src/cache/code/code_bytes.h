// SPDX-License-Identifier: Apache-2.0
// Codes as bytes: each is written where it is first used and named by its number afterwards, so a
// code costs its bytes once however many segments and lists of one cache use it. Codes that reader
// and writer both hold (those that a factory derived from a calibration) are not written at all,
// only their checksums. Format: docs/reference/formats/cache.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/byte_stream.h"
#include "base/memory.h"
#include "cache/code/code.h"
#include "kvspan/result.h"

namespace kvspan {

// One code alone.
void write_code(const Code& code, ByteWriter& out);
// It has to be of rows of `dim` numbers and at most `heads` heads.
Result<std::shared_ptr<const Code>> read_code(std::int32_t heads, std::int32_t dim,
                                              const std::shared_ptr<Ledger>& ledger,
                                              MemoryKind kind, ByteReader& in);

class CodeWriter {
 public:
  // Writes the checksums of `known`, the codes that the reader will be given too, in this order.
  CodeWriter(std::span<const std::shared_ptr<const Code>> known, ByteWriter& out);

  // The code's number and, the first time, the code. It is kept alive until the writer goes.
  void put(const std::shared_ptr<const Code>& code, ByteWriter& out);

 private:
  std::unordered_map<const Code*, std::uint32_t> numbers_;
  std::vector<std::shared_ptr<const Code>> codes_;
};

class CodeReader {
 public:
  // Fails unless `known` are the codes that the writer was given. Codes read later are counted on
  // `ledger` as MemoryKind::kBases: they belong to whoever loads.
  static Result<CodeReader> open(std::span<const std::shared_ptr<const Code>> known, ByteReader& in,
                                 std::shared_ptr<Ledger> ledger);

  // The next code, which has to be of rows of `dim` numbers and at most `heads` heads.
  Result<std::shared_ptr<const Code>> get(std::int32_t heads, std::int32_t dim, ByteReader& in);

 private:
  std::vector<std::shared_ptr<const Code>> codes_;
  std::shared_ptr<Ledger> ledger_;
};

}  // namespace kvspan
