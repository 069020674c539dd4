// SPDX-License-Identifier: Apache-2.0
// How many tokens the sequences of a request will have, counted by the server's own handlers.
#pragma once

#include <cstdint>
#include <string>

struct server_http_context;
struct server_http_req;

namespace kvspan::server {

struct RequestTokens {
  std::int64_t longest = 0;    // tokens of its longest sequence, prompt and answer
  std::int64_t sequences = 1;  // that run side by side
};

// Whether requests to `path` are answered by sequences.
bool uses_sequences(const std::string& path);

// A request that cannot be understood counts no tokens: the server says itself what is wrong with
// it. `context` is the length that no sequence exceeds, `answer` that of answers to requests that
// name none.
RequestTokens count_request_tokens(const server_http_context& http, const server_http_req& request,
                                   const std::string& path, std::int64_t context, std::int64_t answer);

}  // namespace kvspan::server
