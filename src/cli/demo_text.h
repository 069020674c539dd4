// SPDX-License-Identifier: Apache-2.0
// The text and the question of `kvspan demo`, kept in data/demo.
#pragma once

#include <string>

#include "kvspan/result.h"

namespace kvspan::cli {

struct DemoText {
  std::string text;
  std::string question;
};

Result<DemoText> load_demo_text();

}  // namespace kvspan::cli
