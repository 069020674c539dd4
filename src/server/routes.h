// SPDX-License-Identifier: Apache-2.0
// Registering a route with the server's HTTP layer, by the names that scripts/join_server.sh gives
// its functions server_http_context::get and ::post.
#pragma once

#include <server-http.h>

#include <string>

extern "C" void kvspan_server_get(const server_http_context* http, const std::string& path,
                                  const server_http_context::handler_t& handler);
extern "C" void kvspan_server_post(const server_http_context* http, const std::string& path,
                                   const server_http_context::handler_t& handler);
