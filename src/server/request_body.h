// SPDX-License-Identifier: Apache-2.0
// Bodies of requests that kvspan reads itself. JSON is parsed and freed at any depth, but copied and
// written by functions that call themselves once a level: a deep body would exhaust the stack.
#pragma once

#include <memory>
#include <string_view>

#include "kvspan/result.h"

struct server_http_res;

namespace kvspan::server {

inline constexpr int kMostNesting = 500;

// kInvalidArgument for a body whose arrays and objects are nested deeper. Others may be no JSON.
Status check_nesting(std::string_view body);

// Status 400 in the form of the server's own errors.
std::unique_ptr<server_http_res> refuse_request(const Error& error);

}  // namespace kvspan::server
