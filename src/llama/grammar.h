// SPDX-License-Identifier: Apache-2.0
// Grammars that answers are held to: GBNF as llama.cpp writes it, or a JSON schema turned into
// that.
#pragma once

#include <llama.h>

#include <string>

#include "kvspan/result.h"

namespace kvspan {

// GBNF of all JSON that fits the schema. Fails with the reason where it is no JSON schema.
Result<std::string> grammar_of_schema(const std::string& json_schema);

// Fails, with libllama's reason, on what is no GBNF with a rule called root.
Status check_grammar(const llama_vocab* vocabulary, const std::string& grammar);

}  // namespace kvspan
