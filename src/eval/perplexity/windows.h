// SPDX-License-Identifier: Apache-2.0
// A text cut into windows, each read as a sequence of its own, as llama.cpp's perplexity does:
// where the model wants a begin-of-text token, it takes the place of every window's first.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "llama/tokenizer.h"

namespace kvspan {

struct WindowOptions {
  std::size_t length = 4096;
  std::size_t most = 0;   // windows; 0: all
  std::size_t least = 0;  // tokens from which a shorter last window counts; 0: it never does
};

// At least one window, or kInvalidArgument with the tokens there are and those it takes.
Result<std::vector<std::vector<Token>>> cut_windows(const Tokenizer& tokenizer,
                                                    std::string_view text,
                                                    const WindowOptions& options);

}  // namespace kvspan
