// SPDX-License-Identifier: Apache-2.0
// The library's version.
#pragma once

#include <cstdint>

namespace kvspan {

const char* version_string() noexcept;    // "0.1.0"
std::uint32_t version_number() noexcept;  // 1,000,000 major + 1,000 minor + patch

}  // namespace kvspan
