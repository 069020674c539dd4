// SPDX-License-Identifier: Apache-2.0
#include "server/request_body.h"

#include <server-http.h>

#include <nlohmann/json.hpp>

#include "base/fail.h"

namespace kvspan::server {

Status check_nesting(std::string_view body) {
  int depth = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (c == '"') {
      in_text = !in_text;
    } else if (in_text) {
      if (c == '\\') ++i;  // what is escaped ends no text
    } else if (c == '[' || c == '{') {
      if (++depth > kMostNesting) {
        return fail(ErrorCode::kInvalidArgument,
                    "the body is nested deeper than {0} levels; supported: up to {0}", kMostNesting);
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return {};
}

std::unique_ptr<server_http_res> refuse_request(const Error& error) {
  using nlohmann::ordered_json;
  const ordered_json body = {
      {"error", {{"code", 400}, {"message", error.message}, {"type", "invalid_request_error"}}}};
  auto answer = std::make_unique<server_http_res>();
  answer->status = 400;
  answer->data = body.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  return answer;
}

}  // namespace kvspan::server
