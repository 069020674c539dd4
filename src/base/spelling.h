// SPDX-License-Identifier: Apache-2.0
// "Did you mean ...?"
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvspan {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b` (optimal
// string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate nearest to `word`, if it is near enough to be meant: at most a third of the longer
// word's letters differ. The first of equals.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

// ", did you mean 'x'?", or nothing.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

}  // namespace kvspan
