// SPDX-License-Identifier: Apache-2.0
// Stands in for line_reader_edit.cc where libedit is missing.
#include "cli/terminal/line_reader.h"

namespace kvspan::cli::detail {

std::unique_ptr<LineReader> make_editing_reader(const std::string&) {
  return nullptr;
}

}  // namespace kvspan::cli::detail
