// SPDX-License-Identifier: Apache-2.0
// A chat from its flags: kvspan chat, and kvspan run -cnv.
#pragma once

#include <string>

#include "cli/chat/answer_flags.h"

namespace kvspan::cli {

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  CompanionFlags companions;
  std::string system;
  std::string first;          // message that is asked before any is read; "": none
  std::string resume;         // file of the conversation to go on with and to keep; "": none
  bool conversation = false;  // changes nothing
};

// Returns the exit code.
Result<int> chat(const ChatFlags& flags);

}  // namespace kvspan::cli
