// SPDX-License-Identifier: Apache-2.0
// Random choices and the random names that retrieval tasks hide, the same on every platform.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"

namespace kvspan {

// `count` of 0 .. size-1 without repetition, in random order; count <= size.
std::vector<std::size_t> draw(std::size_t count, std::size_t size, Random& random);

template <class T>
void shuffle(std::vector<T>& items, Random& random) {
  for (std::size_t i = items.size(); i > 1; --i) {
    std::swap(items[i - 1], items[random.below(static_cast<std::uint32_t>(i))]);
  }
}

// Decimal, `digits` long, not beginning with 0.
std::string random_number(int digits, Random& random);
// Letters first .. first + 25.
std::string random_letters(char first, int count, Random& random);
// RFC 4122, version 4.
std::string random_uuid(Random& random);

// Calls `make` until it gives a text that is not in `taken`, and adds it there.
template <class Make>
std::string unlike(std::vector<std::string>& taken, const Make& make) {
  for (;;) {
    std::string text = make();
    bool is_new = true;
    for (const std::string& other : taken) is_new = is_new && other != text;
    if (!is_new) continue;
    taken.push_back(text);
    return text;
  }
}

// Lines that are not empty.
std::vector<std::string> lines_of(std::string_view text);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
// `text` with every "{name}" replaced; other braces stay.
std::string filled(std::string text,
                   const std::vector<std::pair<std::string_view, std::string_view>>& values);

}  // namespace kvspan
