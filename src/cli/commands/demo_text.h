// SPDX-License-Identifier: Apache-2.0
// The text and the question of `kvspan demo`, kept in data/demo.
#pragma once

#include <string>

#include "kvspan/result.h"

namespace kvspan::cli {

struct DemoText {
  std::string text;
  std::string question;
  // Some paragraphs of the text that answer the question, read sooner; all of a short text.
  std::string excerpt;
};

Result<DemoText> load_demo_text();

}  // namespace kvspan::cli
