// SPDX-License-Identifier: Apache-2.0
// Rows of perplexity as JSON, there and back: what `eval ppl` and `study` write and continue from.
#pragma once

#include "cli/output/json_output.h"
#include "eval/perplexity/perplexity.h"

namespace kvspan::cli {

void add_figures(const PerplexityFigures& figures, Json& to);
// `length`: tokens of a window, of which by_position names the parts.
Json to_json(const PerplexityRow& row, std::size_t length);
// Throws as the JSON library does on what to_json does not write.
PerplexityRow perplexity_row_from(const Json& json);

// null is NaN.
double number_from(const Json& json);

}  // namespace kvspan::cli
