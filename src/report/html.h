// SPDX-License-Identifier: Apache-2.0
// Pieces of the page: its style, and tables whose cells carry their numbers exactly.
#pragma once

#include <string>

#include "report/data_table.h"

namespace kvspan {

std::string page_style();

// A table of at most `most_rows` rows; a line says how many more there are. Numbers are rounded for
// people, with data-value the whole number.
std::string html_of(const DataTable& table, std::size_t most_rows);

}  // namespace kvspan
