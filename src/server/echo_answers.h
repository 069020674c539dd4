// SPDX-License-Identifier: Apache-2.0
// Completions with `echo` and `logprobs`, in the form that OpenAI's /v1/completions had: the prompt
// comes back before its answer, each of its tokens with its log-probability. Programs that score
// texts ask for it (lm-evaluation-harness); the server itself refuses it.
#pragma once

#include <server-http.h>

namespace kvspan::server {

// The answer to such a request, null for any other. The prompt, one or several, texts or tokens, is
// read by the server's own /completion.
server_http_res_ptr answer_echo(const server_http_context& http, const server_http_req& request);

}  // namespace kvspan::server
