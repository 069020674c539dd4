// SPDX-License-Identifier: Apache-2.0
// The contexts and models of the running server, found by libllama's pointers.
#pragma once

#include <llama.h>

#include <memory>
#include <string>
#include <vector>

#include "server/served_context.h"

namespace kvspan::server {

// Null for a context or memory that is libllama's own.
ServedContext* find_served(const llama_context* context) noexcept;
ServedContext* find_served(llama_memory_t memory) noexcept;

// The context of a model that was loaded by load_model(). A model without a KV cache (an encoder)
// gets libllama's own, and so does one that is only measured or drafts from inside the model it
// drafts for; of any other whose attention is not understood none is made, with a line that says
// why.
llama_context* make_context(llama_model* model, const llama_context_params& params);
void free_context(llama_context* context);

llama_model* load_model(const char* path, const llama_model_params& params);
void free_model(llama_model* model);
bool is_served(const llama_model* model) noexcept;

// Of the model that is served; as it was last where the server sleeps. `awake`: whether it is
// there.
struct ServedFigures {
  KvFigures kv;
  bool awake = false;
};
ServedFigures served_figures();
// Bytes that a request of `tokens` tokens will take; 0 if there is no byte budget.
std::size_t forecast_bytes(std::int64_t tokens);
// The text of a token of the model that is served; empty where none is, for no such token, and for
// the one that the tokenizer puts before every text, where the token is the `first` one.
std::string served_piece(llama_token token, bool first = false);
// Tokens that a sequence may have.
std::uint32_t served_context_length();

}  // namespace kvspan::server
