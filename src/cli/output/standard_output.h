// SPDX-License-Identifier: Apache-2.0
// Text that is a result, written to standard output as it comes.
#pragma once

#include <string_view>

#include "kvspan/result.h"

namespace kvspan::cli {

// Flushed at once. Where that fails (a full disk), nothing more is written and interrupted() is
// set, so that whoever makes the text stops.
void write_output(std::string_view text);
// Fails, with the first reason, where something could not be written.
Status output_status();

}  // namespace kvspan::cli
