// SPDX-License-Identifier: Apache-2.0
// Asking the server's own handlers from within a request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

struct server_http_context;
struct server_http_req;

namespace kvspan::server {

struct RouteAnswer {
  int status = 404;  // also where no such path is there, or the answer would come in pieces
  std::string data;
};

// What the handler of `path` answers to `body`, for the client of `request`.
RouteAnswer ask_route(const server_http_context& http, const server_http_req& request, const std::string& path,
                      std::string body);

// The tokens of a text as prompts are read, by the server's own /tokenize; nothing where it refuses.
std::optional<std::vector<std::int32_t>> tokenize(const server_http_context& http, const server_http_req& request,
                                                  const std::string& text);

}  // namespace kvspan::server
