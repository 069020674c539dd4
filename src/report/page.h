// SPDX-License-Identifier: Apache-2.0
// A report as one HTML page: no script, no network, nothing beside it.
#pragma once

#include <cstddef>
#include <string>

#include "report/data_table.h"

namespace kvspan {

// Bytes that a page stays below, by showing fewer rows of long tables: CSV and JSON have them all.
inline constexpr std::size_t kMostPageBytes = 2'000'000;

std::string page_of(const Report& report);

}  // namespace kvspan
