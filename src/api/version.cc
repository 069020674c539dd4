// SPDX-License-Identifier: Apache-2.0
// KVSPAN_VERSION_ names are this file's compile definitions, set by CMakeLists.txt beside it.
#include "api/version.h"

namespace kvspan {

const char* version_string() noexcept {
  return KVSPAN_VERSION_TEXT;
}

std::uint32_t version_number() noexcept {
  return 1000000u * KVSPAN_VERSION_MAJOR + 1000u * KVSPAN_VERSION_MINOR + KVSPAN_VERSION_PATCH;
}

}  // namespace kvspan
