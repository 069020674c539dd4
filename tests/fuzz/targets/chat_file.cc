// SPDX-License-Identifier: Apache-2.0
// Saved conversations: what is read is written, and read back the same.
#include "cli/chat/chat_file.h"
#include "tests/fuzz/target.h"

namespace kvspan::fuzz {
namespace {

bool run(std::span<const std::uint8_t> input) {
  const auto messages = cli::chat_from_json({reinterpret_cast<const char*>(input.data()), input.size()});
  if (!messages) return false;
  const std::string text = cli::chat_to_json(*messages, "fuzz");
  const auto again = cli::chat_from_json(text);
  must(again.has_value(), "what was written is not read: {}", again ? "" : again.error().message);
  must(cli::chat_to_json(*again, "fuzz") == text, "what was read again is written otherwise");
  return true;
}

std::vector<Bytes> seeds() {
  const std::string start = R"({"format": "kvspan-chat", "version": 1, "messages": )";
  std::vector<Bytes> all;
  const auto add = [&](const std::string& text) { all.emplace_back(text.begin(), text.end()); };
  add(cli::chat_to_json({}, ""));
  const std::vector<ChatMessage> talk{{"system", "Be brief."}, {"user", "\xe2\x82\xac?\n\"\\"}, {"assistant", "Yes\t\x01."}};
  add(cli::chat_to_json(talk, "model"));
  add(start + R"([{"role": "user", "content": "\ud83d\ude00 \u0041", "more": {"a": [1, -2.5e3, true, null]}}], "more": []})");
  return all;
}

}  // namespace

extern const Target chat_file_target{"chat_file", "saved conversations", 1 << 14, run, seeds};

}  // namespace kvspan::fuzz
