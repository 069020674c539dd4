// SPDX-License-Identifier: Apache-2.0
#include "method/designs.h"

#include <limits>

#include "base/fail.h"
#include "cache/code/code_bytes.h"

namespace kvspan {
namespace {

constexpr std::size_t kLongestText = 65536;

}  // namespace

Result<double> Designs::number(const std::function<Result<double>()>& make) {
  double number = 0.0;
  if (are_saved()) {
    KVSPAN_CHECK_OK(
        saved_->get_finite("number", std::span(&number, 1), std::numeric_limits<double>::max()));
  } else {
    KVSPAN_TRY(number, make());
  }
  note([number](ByteWriter& out) { out.put(number); });
  return number;
}

Result<std::string> Designs::text(const std::function<Result<std::string>()>& make) {
  std::string text;
  if (are_saved()) {
    KVSPAN_TRY(text, saved_->get_text("text", kLongestText));
  } else {
    KVSPAN_TRY(text, make());
  }
  note([text](ByteWriter& out) { out.put_text(text); });
  return text;
}

Result<std::shared_ptr<const Code>> Designs::code(
    std::int32_t heads, std::int32_t dim, const std::shared_ptr<Ledger>& ledger,
    const std::function<Result<std::shared_ptr<const Code>>()>& make) {
  std::shared_ptr<const Code> code;
  if (are_saved()) {
    KVSPAN_TRY(code, read_code(heads, dim, ledger, MemoryKind::kShared, *saved_));
  } else {
    KVSPAN_TRY(code, make());
  }
  note([code](ByteWriter& out) { write_code(*code, out); });
  return code;
}

}  // namespace kvspan
