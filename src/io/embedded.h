// SPDX-License-Identifier: Apache-2.0
// Files of the source tree carried inside the program.
#pragma once

namespace kvspan::detail {

extern const char* const kModelCatalogue;  // data/models.json
extern const char* const kPullScript;      // scripts/pull.py

}  // namespace kvspan::detail
