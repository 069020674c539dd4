// SPDX-License-Identifier: Apache-2.0
#include "server/echo_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "kvspan/result.h"
#include "server/ask_route.h"
#include "server/prompt_scores.h"
#include "server/request_body.h"
#include "server/served_contexts.h"

namespace kvspan::server {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kMostTop = 100;
constexpr std::uint64_t kMostAnswer = 1u << 30;  // tokens, beyond any context

std::string dumped(const ordered_json& document) {
  return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

server_http_res_ptr answer_with(int status, std::string data) {
  auto answer = std::make_unique<server_http_res>();
  answer->status = status;
  answer->data = std::move(data);
  return answer;
}

constexpr const char* kPromptKinds = "supported: a text, tokens, or a list of such";

Result<std::vector<llama_token>> tokens_of(const ordered_json& list) {
  std::vector<llama_token> tokens;
  for (const ordered_json& one : list) {
    const bool known = one.is_number_integer() && one >= 0 && one <= std::numeric_limits<llama_token>::max();
    if (!known) {
      return fail(ErrorCode::kInvalidArgument, "prompt[{}] is no token; supported: whole numbers of the vocabulary",
                  tokens.size());
    }
    tokens.push_back(one.get<llama_token>());
  }
  return tokens;
}

// Prompts of a body as tokens: a text, tokens, or a list of such.
Result<std::vector<std::vector<llama_token>>> prompts_of(const server_http_context& http, const server_http_req& request,
                                                         const ordered_json& prompt) {
  std::vector<std::vector<llama_token>> prompts;
  const auto add = [&](const ordered_json& one) -> Status {
    std::vector<llama_token> tokens;
    if (one.is_string()) {
      auto read = tokenize(http, request, one.get_ref<const std::string&>());
      if (!read) return fail(ErrorCode::kInvalidArgument, "the prompt cannot be tokenized");
      tokens = *std::move(read);
    } else if (one.is_array()) {
      KVSPAN_TRY(tokens, tokens_of(one));
    }
    if (tokens.empty()) return fail(ErrorCode::kInvalidArgument, "a prompt has no tokens; {}", kPromptKinds);
    prompts.push_back(std::move(tokens));
    return {};
  };
  const bool several = prompt.is_array() && !prompt.empty() &&
                       std::none_of(prompt.begin(), prompt.end(), [](const auto& one) { return one.is_number(); });
  if (!several) {
    KVSPAN_CHECK_OK(add(prompt));
    return prompts;
  }
  for (const ordered_json& one : prompt) KVSPAN_CHECK_OK(add(one));
  return prompts;
}

// Tokens one by one, as OpenAI's completions list them.
struct Listed {
  std::string text;
  ordered_json tokens = ordered_json::array(), logprobs = ordered_json::array(), top = ordered_json::array(),
               offsets = ordered_json::array();

  void add(const std::string& piece, ordered_json logprob, ordered_json likeliest) {
    offsets.push_back(text.size());
    text += piece;
    tokens.push_back(piece);
    logprobs.push_back(std::move(logprob));
    top.push_back(std::move(likeliest));
  }
};

void list_prompt(std::span<const llama_token> tokens, std::span<const TokenScore> scores, Listed& to) {
  to.add(served_piece(tokens.front(), true), nullptr, nullptr);
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    const TokenScore& score = scores[i - 1];
    ordered_json likeliest = ordered_json::object();
    for (const auto& [token, logprob] : score.top) likeliest[served_piece(token)] = logprob;
    to.add(served_piece(tokens[i]), score.logprob, std::move(likeliest));
  }
}

void list_answer(const ordered_json& answer, Listed& to) {
  const auto written = answer.find("completion_probabilities");
  if (written == answer.end()) return;
  for (const ordered_json& one : *written) {
    ordered_json likeliest = ordered_json::object();
    for (const ordered_json& each : one.at("top_logprobs")) likeliest[each.at("token").get<std::string>()] = each.at("logprob");
    to.add(one.at("token").get<std::string>(), one.at("logprob"), std::move(likeliest));
  }
}

// A value of the request's body; null if it has none.
const ordered_json& value_of(const ordered_json& body, const char* key) {
  static const ordered_json kNull;
  const auto found = body.find(key);
  return found == body.end() ? kNull : *found;
}

// What a request may ask of the server and not of a prompt that is echoed.
Status check_asked(const ordered_json& body) {
  const auto refuse = [&](const char* key, const char* why) {
    return fail(ErrorCode::kInvalidArgument, "{}={:.40}: {}", key, dumped(value_of(body, key)), why);
  };
  if (value_of(body, "stream") == true) return refuse("stream", "echo with logprobs is no stream; supported: false");
  if (value_of(body, "post_sampling_probs") == true) {
    return refuse("post_sampling_probs", "echo with logprobs lists what the model computes; supported: false");
  }
  for (const char* key : {"n", "n_cmpl"}) {
    const ordered_json& many = value_of(body, key);
    if (!many.is_null() && many != 1) return refuse(key, "echo with logprobs gives one answer to a prompt; supported: 1");
  }
  const ordered_json& most = value_of(body, "max_tokens");
  if (!most.is_null() && (!most.is_number_integer() || most < 0)) {
    return refuse("max_tokens", "echo with logprobs needs a length; supported: 0 and more");
  }
  return {};
}

}  // namespace

server_http_res_ptr answer_echo(const server_http_context& http, const server_http_req& request) {
  if (request.body.find("\"echo\"") == std::string::npos) return nullptr;  // most are long and do not ask
  ordered_json body = ordered_json::parse(request.body, nullptr, false);
  if (!body.is_object() || value_of(body, "echo") != true || !value_of(body, "logprobs").is_number_integer()) return nullptr;
  if (const Status status = check_nesting(request.body); !status) return refuse_request(status.error());
  if (const Status status = check_asked(body); !status) return refuse_request(status.error());
  const auto prompts = prompts_of(http, request, value_of(body, "prompt"));
  if (!prompts) return refuse_request(prompts.error());

  const std::int64_t top = std::clamp<std::int64_t>(body["logprobs"].get<std::int64_t>(), 1, kMostTop);
  const ordered_json& most = value_of(body, "max_tokens");
  const auto asked = most.is_null() ? 16 : static_cast<std::int64_t>(std::min<std::uint64_t>(most.get<std::uint64_t>(), kMostAnswer));
  const ordered_json model = body.value("model", ordered_json("kvspan"));
  // What is answered here, or would give the server's answer another form.
  for (const char* ours : {"echo", "logprobs", "max_tokens", "n", "n_cmpl", "stream", "model", "prompt", "post_sampling_probs", "response_fields"}) {
    body.erase(ours);
  }
  body["n_predict"] = std::max<std::int64_t>(asked, 1);
  body["n_probs"] = top;
  body["cache_prompt"] = false;
  ordered_json choices = ordered_json::array();
  std::size_t read = 0, written = 0;
  for (const std::vector<llama_token>& prompt : *prompts) {
    const auto wanted = wanted_scores().want(prompt, static_cast<std::size_t>(top));
    body["prompt"] = prompt;
    const RouteAnswer answer = ask_route(http, request, "/completion", dumped(body));
    if (answer.status != 200) return answer_with(answer.status, answer.data);
    const auto scores = wanted_scores().take(*wanted);
    if (!scores) {
      return answer_with(500, R"({"error": {"code": 500, "type": "server_error", "message": "the prompt was not scored"}})");
    }
    const ordered_json found = ordered_json::parse(answer.data);
    Listed listed;
    list_prompt(prompt, *scores, listed);
    if (asked > 0) list_answer(found, listed);
    read += prompt.size();
    written += listed.tokens.size() - prompt.size();
    choices.push_back({{"index", choices.size()},
                       {"text", listed.text},
                       {"logprobs",
                        {{"tokens", std::move(listed.tokens)},
                         {"token_logprobs", std::move(listed.logprobs)},
                         {"top_logprobs", std::move(listed.top)},
                         {"text_offset", std::move(listed.offsets)}}},
                       {"finish_reason", found.value("stop_type", "") == "limit" ? "length" : "stop"}});
  }
  return answer_with(200, dumped({{"id", fmt::format("cmpl-{:x}", std::hash<std::string>{}(request.body))},
                                  {"object", "text_completion"},
                                  {"created", std::time(nullptr)},
                                  {"model", model},
                                  {"choices", std::move(choices)},
                                  {"usage",
                                   {{"prompt_tokens", read},
                                    {"completion_tokens", written},
                                    {"total_tokens", read + written}}}}));
}

}  // namespace kvspan::server
