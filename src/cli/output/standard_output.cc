// SPDX-License-Identifier: Apache-2.0
#include "cli/output/standard_output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/fail.h"
#include "cli/terminal/interrupt.h"

namespace kvspan::cli {
namespace {

int first_error = 0;

}  // namespace

void write_output(std::string_view text) {
  if (first_error != 0) return;
  errno = 0;
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (written) return;
  first_error = errno != 0 ? errno : EIO;
  interrupted() = true;
}

Status output_status() {
  if (first_error == 0) {
    errno = 0;
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
    first_error = errno != 0 ? errno : EIO;
  }
  return fail(ErrorCode::kIo, "cannot write to standard output: {}", std::strerror(first_error));
}

}  // namespace kvspan::cli
