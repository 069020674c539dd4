// SPDX-License-Identifier: Apache-2.0
// The page that the server shows at /, one file, carried inside the program.
#pragma once

#include <string_view>

namespace kvspan::server {

std::string_view page_html() noexcept;

}  // namespace kvspan::server
