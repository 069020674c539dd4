// SPDX-License-Identifier: Apache-2.0
#include "server/serve.h"

#include "base/expect.h"
#include "llama/ggml_log.h"
#include "server/prompt_scores.h"

// The server's own entry (scripts/join_server.sh).
extern "C" int kvspan_serve_llama_server(int count, char** arguments);

namespace kvspan::server {
namespace {

ServeOptions& running() {
  static ServeOptions options;
  return options;
}

}  // namespace

const ServeOptions& serve_options() noexcept {
  return running();
}

int serve(const std::vector<std::string>& arguments, ServeOptions options) {
  KVSPAN_EXPECT(options.plan != nullptr, "serve needs to know how caches are made");
  running() = std::move(options);
  running().wanted_scores = &wanted_scores();
  silence_ggml();  // once: from here on lines are the server's
  std::vector<std::string> words{"kvspan serve"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return kvspan_serve_llama_server(static_cast<int>(words.size()), pointers.data());
}

}  // namespace kvspan::server
