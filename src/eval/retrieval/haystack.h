// SPDX-License-Identifier: Apache-2.0
// Text that needles are hidden in, and the hiding of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"

namespace kvspan {

// RULER's filler.
inline constexpr std::string_view kNoiseText =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

// Words parted by white space; the text begins anew where more are asked for than there are.
std::string first_words(std::string_view text, std::size_t count);

// Sentences, without the space between them. Ends are . ! or ? (and closing quotes) before a space
// and a capital, digit or opening quote; not after an initial or a usual abbreviation.
std::vector<std::string> sentences_of(std::string_view text);

// The sentences with the needles, in their order, between them: each at one of forty depths, evenly
// spread from the beginning to the end, no two at the same. Parted by spaces.
std::string hide_at_depths(const std::vector<std::string>& sentences,
                           const std::vector<std::string>& needles, Random& random);

// The lines with the needles, in their order, before different random ones.
std::vector<std::string> hide_between(std::vector<std::string> lines,
                                      const std::vector<std::string>& needles, Random& random);

}  // namespace kvspan
