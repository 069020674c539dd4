// SPDX-License-Identifier: Apache-2.0
// Temporary files that a killed process could not remove.
#pragma once

#include <string>
#include <string_view>

namespace kvspan {

// Removes files named `prefix`, the number of a process that is no more, and, where `suffix` is not
// empty, "-", a count and `suffix`. Young ones stay: their process may run where it cannot be seen
// from here.
void remove_abandoned(const std::string& prefix, std::string_view suffix = "");

}  // namespace kvspan
