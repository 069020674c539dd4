// SPDX-License-Identifier: Apache-2.0
#include "server/ask_route.h"

#include <server-http.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace kvspan::server {

RouteAnswer ask_route(const server_http_context& http, const server_http_req& request, const std::string& path,
                      std::string body) {
  const auto handler = http.handlers.find(path);
  if (handler == http.handlers.end()) return {};
  const server_http_req question{request.params, request.headers, path, "", std::move(body), {}, request.should_stop};
  const server_http_res_ptr answer = handler->second(question);
  if (!answer || answer->is_stream()) return {};
  RouteAnswer found{answer->status, std::move(answer->data)};
  answer->on_complete();
  return found;
}

std::optional<std::vector<std::int32_t>> tokenize(const server_http_context& http, const server_http_req& request,
                                                  const std::string& text) {
  using nlohmann::json;
  const json body = {{"content", text}, {"add_special", true}, {"parse_special", true}};
  const RouteAnswer answer = ask_route(http, request, "/tokenize", body.dump(-1, ' ', false, json::error_handler_t::replace));
  const json found = answer.status == 200 ? json::parse(answer.data, nullptr, false) : json();
  if (!found.is_object() || !found.contains("tokens")) return std::nullopt;
  return found["tokens"].get<std::vector<std::int32_t>>();
}

}  // namespace kvspan::server
