// SPDX-License-Identifier: Apache-2.0
// Words as Python sees them, which scores of benchmarks written in it rest on. Texts are UTF-8;
// bytes that are not stay as they are. Letters are made small in ASCII only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvspan {

using Words = std::vector<std::string>;

// str.split(): parted by white space, Unicode's too.
Words words_of(std::string_view text);

// Small letters, without ASCII's punctuation and without the articles a, an and the, which end
// where a regular expression's word does (\b): at spaces and at signs such as curly quotes and
// dashes.
Words normalised_words(std::string_view text);

}  // namespace kvspan
