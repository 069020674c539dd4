// SPDX-License-Identifier: Apache-2.0
// Bodies of requests that kvspan reads itself: completions with echo, and what a budget has to admit. The server's own
// handlers, which are asked on the way, are made up; sometimes they refuse.
#include <server-http.h>

#include <nlohmann/json.hpp>

#include "server/echo_answers.h"
#include "server/prompt_scores.h"
#include "server/request_body.h"
#include "server/request_tokens.h"
#include "server/served_contexts.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/target.h"

class server_http_context::Impl {};
server_http_context::server_http_context() = default;
server_http_context::~server_http_context() = default;

namespace kvspan::server {

// Of no model: as if every token were a letter.
std::string served_piece(llama_token token, bool first) {
  return first ? "" : std::string(1, static_cast<char>('a' + token % 26));
}

}  // namespace kvspan::server

namespace kvspan::fuzz {
namespace {

using nlohmann::ordered_json;
using namespace kvspan::server;

constexpr std::int64_t kContext = 4096, kAnswer = 256;
constexpr std::size_t kVocabulary = 32;

server_http_res_ptr answer_of(int status, const ordered_json& data) {
  auto answer = std::make_unique<server_http_res>();
  answer->status = status;
  answer->data = data.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  return answer;
}

// The tokens of a body that kvspan made, scored as a context does that reads them.
server_http_res_ptr complete(const server_http_req& request) {
  const ordered_json body = ordered_json::parse(request.body);
  const auto tokens = body.at("prompt").get<std::vector<llama_token>>();
  SequenceScores scores(wanted_scores().top_of(tokens));
  const std::vector<float> logits(kVocabulary, 0.5f);
  llama_pos position = 0;
  for (const llama_token token : tokens) {
    // One beyond the vocabulary is the server's to refuse.
    if (token < 0 || static_cast<std::size_t>(token) >= kVocabulary) return answer_of(400, {{"error", "no such token"}});
    must(scores.read(position++, token, logits), "a sequence in order is not scored");
  }
  wanted_scores().give(scores);
  ordered_json likely = {{"token", "b"}, {"logprob", -1.5}};
  ordered_json one = {{"token", "a"}, {"logprob", -0.5}, {"top_logprobs", ordered_json::array({likely})}};
  return answer_of(200, {{"content", "a"}, {"completion_probabilities", ordered_json::array({one})}, {"stop_type", "limit"}});
}

server_http_res_ptr tokenize(const server_http_req& request) {
  const std::string text = ordered_json::parse(request.body).at("content").get<std::string>();
  ordered_json tokens = ordered_json::array({1});
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c) % kVocabulary);
  return answer_of(200, {{"tokens", tokens}});
}

// Handlers of which one sort, by `kind`, answers in some other way.
void fill(server_http_context& http, std::int32_t kind) {
  http.handlers["/completion"] = kind == 1 ? [](const server_http_req&) { return answer_of(503, {{"error", "loading"}}); } : complete;
  http.handlers["/tokenize"] = kind == 2 ? [](const server_http_req&) { return answer_of(200, ordered_json::array()); } : tokenize;
  for (const char* const path :
       {"/v1/chat/completions/input_tokens", "/v1/responses/input_tokens", "/v1/messages/count_tokens"}) {
    http.handlers[path] = [kind](const server_http_req& request) {
      return kind == 3 ? answer_of(200, {{"input_tokens", "many"}}) : answer_of(200, {{"input_tokens", request.body.size()}});
    };
  }
}

bool run(std::span<const std::uint8_t> bytes) {
  Input input(bytes);
  const std::int32_t kind = input.below(8);
  const std::string path = input.of<const char*>({"/v1/completions", "/completion", "/infill", "/v1/chat/completions", "/v1/responses",
                                                  "/v1/messages", "/embedding", "/props"});
  const std::string body(reinterpret_cast<const char*>(input.rest().data()), input.rest().size());
  server_http_context http;
  fill(http, kind);
  const std::function<bool()> never = [] { return false; };
  const server_http_req request{{}, {}, path, "", body, {}, never};
  if (!check_nesting(body)) return false;
  const RequestTokens count = count_request_tokens(http, request, path, kContext, kAnswer);
  must(count.longest >= 0 && count.longest <= kContext && count.sequences >= 1, "{} tokens in {} sequences", count.longest,
       count.sequences);
  const server_http_res_ptr answer = answer_echo(http, request);
  if (!answer) return count.longest > 0;
  must(answer->status == 200 || answer->status == 400 || kind == 1, "echo is answered with {}: {}", answer->status, answer->data);
  must(ordered_json::accept(answer->data), "echo is answered with what is no JSON: {}", answer->data);
  return answer->status == 200;
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  const auto add = [&](std::uint8_t path, std::string_view body) {
    Bytes& bytes = all.emplace_back(Bytes{0, path});
    bytes.insert(bytes.end(), body.begin(), body.end());
  };
  add(0, R"({"prompt": "abc", "echo": true, "logprobs": 5, "max_tokens": 0})");
  add(0, R"({"prompt": [1, 2, 3], "echo": true, "logprobs": 1, "max_tokens": 3, "model": "m", "n": 1, "seed": 1})");
  add(0, R"({"prompt": ["a", [4, 5]], "echo": true, "logprobs": 2})");
  add(1, R"({"prompt": ["a", [4, "b"], {"prompt_string": "c"}], "n_predict": -1, "n": 3})");
  add(2, R"({"input_prefix": "a", "input_suffix": "b", "max_tokens": 1e3})");
  add(3, R"({"messages": [{"role": "user", "content": "\u00e4"}], "max_completion_tokens": 7})");
  return all;
}

}  // namespace

extern const Target requests_target{"requests", "bodies of requests that kvspan reads itself", 1 << 12, run, seeds};

}  // namespace kvspan::fuzz
