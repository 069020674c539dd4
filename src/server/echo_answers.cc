// SPDX-License-Identifier: Apache-2.0
#include "server/echo_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "kvspan/result.h"
#include "server/ask_route.h"
#include "server/prompt_scores.h"
#include "server/served_contexts.h"

namespace kvspan::server {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kMostTop = 100;

std::string dumped(const ordered_json& document) {
  return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

server_http_res_ptr answer_with(int status, std::string data) {
  auto answer = std::make_unique<server_http_res>();
  answer->status = status;
  answer->data = std::move(data);
  return answer;
}

server_http_res_ptr refuse_echo(const std::string& why) {
  return answer_with(400, dumped({{"error", {{"code", 400}, {"message", why}, {"type", "invalid_request_error"}}}}));
}

// Prompts of a body as tokens: a text, tokens, or a list of such.
Result<std::vector<std::vector<llama_token>>> prompts_of(const server_http_context& http, const server_http_req& request,
                                                         const ordered_json& prompt) {
  std::vector<std::vector<llama_token>> prompts;
  if (prompt.is_string()) {
    auto tokens = tokenize(http, request, prompt.get<std::string>());
    if (!tokens) return fail(ErrorCode::kInvalidArgument, "the prompt cannot be tokenized");
    prompts.push_back(*std::move(tokens));
  } else if (prompt.is_array() && !prompt.empty() &&
             std::all_of(prompt.begin(), prompt.end(), [](const auto& one) { return one.is_number_integer(); })) {
    prompts.push_back(prompt.get<std::vector<llama_token>>());
  } else if (prompt.is_array() && !prompt.empty() &&
             std::none_of(prompt.begin(), prompt.end(), [](const auto& one) { return one.is_number(); })) {
    for (const ordered_json& one : prompt) {
      const bool deeper = one.is_array() && std::any_of(one.begin(), one.end(), [](const auto& of) { return !of.is_number(); });
      if (deeper) return fail(ErrorCode::kInvalidArgument, "a list of prompts holds texts or lists of tokens, nothing deeper");
      KVSPAN_TRY(auto more, prompts_of(http, request, one));
      prompts.insert(prompts.end(), more.begin(), more.end());
    }
    return prompts;
  }
  if (prompts.empty() || prompts.front().empty()) {
    return fail(ErrorCode::kInvalidArgument, "echo needs a prompt: a text, tokens, or a list of such");
  }
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

void list_prompt(const PromptScores& scored, Listed& to) {
  to.add(served_piece(scored.tokens.front(), true), nullptr, nullptr);
  for (std::size_t i = 1; i < scored.tokens.size(); ++i) {
    const TokenScore& score = scored.scores[i - 1];
    ordered_json likeliest = ordered_json::object();
    for (const auto& [token, logprob] : score.top) likeliest[served_piece(token)] = logprob;
    to.add(served_piece(scored.tokens[i]), score.logprob, std::move(likeliest));
  }
}

void list_answer(const ordered_json& answer, Listed& to) {
  for (const ordered_json& one : answer.value("completion_probabilities", ordered_json::array())) {
    ordered_json likeliest = ordered_json::object();
    for (const ordered_json& each : one["top_logprobs"]) likeliest[each["token"].get<std::string>()] = each["logprob"];
    to.add(one["token"].get<std::string>(), one["logprob"], std::move(likeliest));
  }
}

}  // namespace

bool wants_echo(const std::string& body) {
  if (body.find("\"echo\"") == std::string::npos) return false;  // most are long and do not ask
  const auto parsed = ordered_json::parse(body, nullptr, false);
  return parsed.is_object() && parsed.value("echo", ordered_json(false)) == true && parsed.contains("logprobs") &&
         parsed["logprobs"].is_number_integer();
}

server_http_res_ptr answer_echo(const server_http_context& http, const server_http_req& request) {
  ordered_json body = ordered_json::parse(request.body, nullptr, false);
  const std::int64_t top = std::clamp<std::int64_t>(body["logprobs"].get<std::int64_t>(), 1, kMostTop);
  const ordered_json many = body.value("n", ordered_json(1)), asked = body.value("max_tokens", ordered_json(16));
  if (body.value("stream", ordered_json(false)) == true) return refuse_echo("echo with logprobs does not come as a stream");
  if (many != 1) return refuse_echo("echo with logprobs gives one answer to a prompt (n = 1)");
  if (!asked.is_number_integer() || asked < 0) return refuse_echo("echo with logprobs needs max_tokens of 0 or more");
  const auto prompts = prompts_of(http, request, body.value("prompt", ordered_json()));
  if (!prompts) return refuse_echo(prompts.error().message);

  const ordered_json model = body.value("model", ordered_json("kvspan"));
  for (const char* ours : {"echo", "logprobs", "max_tokens", "n", "stream", "model", "prompt"}) body.erase(ours);
  body["n_predict"] = std::max<std::int64_t>(asked.get<std::int64_t>(), 1);
  body["n_probs"] = top;
  body["cache_prompt"] = false;
  ordered_json choices = ordered_json::array();
  std::size_t read = 0, written = 0;
  for (const std::vector<llama_token>& prompt : *prompts) {
    const auto scored = wanted_scores().want(prompt, static_cast<std::size_t>(top));
    body["prompt"] = prompt;
    const RouteAnswer answer = ask_route(http, request, "/completion", dumped(body));
    if (answer.status != 200) return answer_with(answer.status, answer.data);
    if (!scored->complete()) {
      return answer_with(500, R"({"error": {"code": 500, "type": "server_error", "message": "the prompt was not scored"}})");
    }
    const ordered_json found = ordered_json::parse(answer.data);
    Listed listed;
    list_prompt(*scored, listed);
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
