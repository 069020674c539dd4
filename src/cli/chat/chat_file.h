// SPDX-License-Identifier: Apache-2.0
// A conversation as JSON (docs/reference/formats/chat_json.md).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llama/tokenizer.h"

namespace kvspan::cli {

std::string chat_to_json(std::span<const ChatMessage> messages, const std::string& model);

// Fails, naming what is wrong and where, on anything but such a file.
Result<std::vector<ChatMessage>> chat_from_json(std::string_view text);

}  // namespace kvspan::cli
