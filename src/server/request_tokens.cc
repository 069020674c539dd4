// SPDX-License-Identifier: Apache-2.0
#include "server/request_tokens.h"

#include <server-http.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/ask_route.h"

namespace kvspan::server {
namespace {

using nlohmann::json;

struct Endpoint {
  std::string_view path;
  std::string_view counter;  // the path that counts tokens of the same body; empty: /tokenize does, of its prompt
  bool answers;              // with tokens of its own
};
constexpr std::array kEndpoints{
    Endpoint{"/completion", "", true},
    Endpoint{"/completions", "", true},
    Endpoint{"/v1/completions", "", true},
    Endpoint{"/infill", "", true},
    Endpoint{"/chat/completions", "/v1/chat/completions/input_tokens", true},
    Endpoint{"/v1/chat/completions", "/v1/chat/completions/input_tokens", true},
    Endpoint{"/responses", "/v1/responses/input_tokens", true},
    Endpoint{"/v1/responses", "/v1/responses/input_tokens", true},
    Endpoint{"/v1/messages", "/v1/messages/count_tokens", true},
    Endpoint{"/embedding", "", false},
    Endpoint{"/embeddings", "", false},
    Endpoint{"/v1/embeddings", "", false},
};

const Endpoint* find_endpoint(std::string_view path) {
  const auto found =
      std::find_if(kEndpoints.begin(), kEndpoints.end(), [&](const Endpoint& one) { return one.path == path; });
  return found == kEndpoints.end() ? nullptr : &*found;
}

std::int64_t tokens_of_text(const server_http_context& http, const server_http_req& request, const json& text) {
  const auto tokens = tokenize(http, request, text.get_ref<const std::string&>());
  return tokens ? static_cast<std::int64_t>(tokens->size()) : 0;
}

// Of one prompt: a text, tokens with texts between them, or an object with a text.
std::int64_t tokens_of_prompt(const server_http_context& http, const server_http_req& request, const json& prompt) {
  if (prompt.is_string()) return tokens_of_text(http, request, prompt);
  if (prompt.is_array()) {
    std::int64_t tokens = 0;
    for (const json& one : prompt) tokens += one.is_string() ? tokens_of_text(http, request, one) : 1;
    return tokens;
  }
  const auto text = prompt.find("prompt_string");
  return text != prompt.end() && text->is_string() ? tokens_of_text(http, request, *text) : 0;
}

// A prompt, or a list of such.
void count_prompt(const server_http_context& http, const server_http_req& request, const json& prompt,
                  RequestTokens& count) {
  const bool several = prompt.is_array() &&
                       std::none_of(prompt.begin(), prompt.end(), [](const json& one) { return one.is_number(); });
  if (several) count.sequences = std::max<std::int64_t>(1, static_cast<std::int64_t>(prompt.size()));
  const auto add = [&](const json& one) { count.longest = std::max(count.longest, tokens_of_prompt(http, request, one)); };
  if (!several) return add(prompt);
  for (const json& one : prompt) add(one);
}

// The first of the keys that has a whole number.
std::int64_t number_of(const json& body, std::initializer_list<const char*> keys, std::int64_t otherwise) {
  for (const char* key : keys) {
    const auto found = body.find(key);
    if (found != body.end() && found->is_number_integer()) return found->get<std::int64_t>();
  }
  return otherwise;
}

}  // namespace

bool uses_sequences(const std::string& path) {
  return find_endpoint(path) != nullptr;
}

RequestTokens count_request_tokens(const server_http_context& http, const server_http_req& request,
                                   const std::string& path, std::int64_t context, std::int64_t answer) {
  RequestTokens count;
  const Endpoint* endpoint = find_endpoint(path);
  const json body = json::parse(request.body, nullptr, false);
  if (endpoint == nullptr || !body.is_object()) return count;
  if (endpoint->counter.empty()) {
    for (const char* key : {"prompt", "input", "content", "input_prefix", "input_suffix"}) {
      if (body.contains(key)) count_prompt(http, request, body[key], count);
    }
  } else {
    const RouteAnswer found = ask_route(http, request, std::string(endpoint->counter), request.body);
    const json counted = found.status == 200 ? json::parse(found.data, nullptr, false) : json();
    if (counted.is_object()) count.longest = number_of(counted, {"input_tokens"}, 0);
  }
  if (!endpoint->answers) return count;
  std::int64_t more =
      number_of(body, {"n_predict", "max_tokens", "max_completion_tokens", "max_output_tokens"}, answer);
  if (more < 0) more = context;
  count.longest = std::min(count.longest + std::min(more, context), context);
  count.sequences *= std::clamp<std::int64_t>(number_of(body, {"n", "n_cmpl"}, 1), 1, 1024);
  return count;
}

}  // namespace kvspan::server
