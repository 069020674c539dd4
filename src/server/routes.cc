// SPDX-License-Identifier: Apache-2.0
// The server's routes on their way to its HTTP layer (scripts/join_server.sh): /metrics gets
// kvspan's figures beside the server's, /kv is added, completions that echo their prompt with its
// log-probabilities are answered here, and with a budget requests that are answered by sequences
// have to be admitted.
#include <server-http.h>

#include <fmt/format.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "server/admission.h"
#include "server/echo_answers.h"
#include "server/kv_report.h"
#include "server/page/page.h"
#include "server/request_body.h"
#include "server/request_tokens.h"
#include "server/routes.h"
#include "server/served_contexts.h"

namespace kvspan::server {
namespace {

using Handler = server_http_context::handler_t;

Admission& admission() {
  static Admission the(serve_options().kv_budget_bytes, serve_options().kv_wait_seconds);
  return the;
}

std::optional<StoreStatistics> store_figures() {
  const auto& blocks = serve_options().prefix_blocks;
  return blocks ? std::optional(blocks->statistics()) : std::nullopt;
}

server_http_res_ptr answer_kv(const server_http_req&) {
  auto answer = std::make_unique<server_http_res>();
  answer->data = kv_json(served_figures(), admission().figures(), store_figures());
  return answer;
}

server_http_res_ptr answer_page(const server_http_req&) {
  auto answer = std::make_unique<server_http_res>();
  answer->content_type = "text/html; charset=utf-8";
  answer->headers["Cache-Control"] = "no-cache";
  answer->data = page_html();
  return answer;
}

// The answer of a handler that holds its ticket until it is complete.
struct AdmittedAnswer : server_http_res {
  server_http_res_ptr inner;
  Admission::Ticket ticket;

  AdmittedAnswer(server_http_res_ptr answer, Admission::Ticket reserved)
      : inner(std::move(answer)), ticket(std::move(reserved)) {
    content_type = inner->content_type;
    status = inner->status;
    data = std::move(inner->data);
    headers = inner->headers;
    if (inner->is_stream()) {
      next = [this](std::string& chunk) { return inner->next(chunk); };
    }
  }
  void on_complete() override {
    inner->on_complete();
    ticket.reset();
  }
};

server_http_res_ptr refuse(const Error& error, std::size_t needed) {
  const AdmissionFigures figures = admission().figures();
  auto answer = std::make_unique<server_http_res>();
  answer->status = 429;
  answer->headers["Retry-After"] = "5";
  const nlohmann::ordered_json body = {{"error",
                                        {{"code", 429},
                                         {"type", "kv_budget_error"},
                                         {"message", error.message},
                                         {"kv_needed_bytes", needed},
                                         {"kv_budget_bytes", figures.budget_bytes},
                                         {"kv_reserved_bytes", figures.reserved_bytes}}}};
  answer->data = body.dump();
  return answer;
}

Handler admitted(const server_http_context& http, const std::string& path, const Handler& handler) {
  return [&http, path, handler](const server_http_req& request) -> server_http_res_ptr {
    if (const Status status = check_nesting(request.body); !status) return refuse_request(status.error());
    const RequestTokens tokens =
        count_request_tokens(http, request, path, served_context_length(), serve_options().answer_tokens);
    const std::size_t bytes = forecast_bytes(tokens.longest) * static_cast<std::size_t>(tokens.sequences);
    auto ticket = admission().admit(bytes, request.should_stop);
    if (!ticket) return refuse(ticket.error(), bytes);
    return std::make_unique<AdmittedAnswer>(handler(request), *std::move(ticket));
  };
}

Handler with_echo(const server_http_context& http, const Handler& handler) {
  return [&http, handler](const server_http_req& request) {
    server_http_res_ptr echoed = answer_echo(http, request);
    return echoed ? std::move(echoed) : handler(request);
  };
}

Handler with_figures(const Handler& handler) {
  return [handler](const server_http_req& request) {
    server_http_res_ptr answer = handler(request);
    if (answer && answer->status == 200 && !answer->is_stream()) {
      answer->data += kv_metrics(served_figures(), admission().figures(), store_figures());
    }
    return answer;
  };
}

}  // namespace
}  // namespace kvspan::server

using kvspan::server::Handler;

extern "C" void kvspan_serve_route_get(const server_http_context* http, const std::string& path,
                                       const Handler& handler) {
  if (path == "/metrics") {
    kvspan_server_get(http, path, kvspan::server::with_figures(handler));
    kvspan_server_get(http, "/kv", kvspan::server::answer_kv);
    if (kvspan::server::serve_options().page) kvspan_server_get(http, "/", kvspan::server::answer_page);
  } else {
    kvspan_server_get(http, path, handler);
  }
}

extern "C" void kvspan_serve_route_post(const server_http_context* http, const std::string& path,
                                        const Handler& handler) {
  const bool limited = kvspan::server::serve_options().kv_budget_bytes > 0;
  const bool asks = limited && kvspan::server::uses_sequences(path);
  Handler answers = asks ? kvspan::server::admitted(*http, path, handler) : handler;
  if (path == "/v1/completions") answers = kvspan::server::with_echo(*http, answers);
  kvspan_server_post(http, path, answers);
}
