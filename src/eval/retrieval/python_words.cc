// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval/python_words.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

namespace kvspan {
namespace {

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f');
}
bool is_punctuation(char c) {
  return c > ' ' && c < '\x7f' && !(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z') &&
         !(c >= 'A' && c <= 'Z');
}
char small(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Bytes of the UTF-8 character that begins `text`, and its number; 1 and U+FFFD where it is none.
std::pair<std::size_t, std::uint32_t> first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t size = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (size == 1 || size > text.size()) return {1, lead < 0x80 ? lead : 0xfffdu};
  std::uint32_t number = lead & (0xffu >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    number = (number << 6) | (static_cast<unsigned char>(text[i]) & 0x3fu);
  }
  return {size, number};
}

// Beyond ASCII, what Python parts words at (str.split).
bool is_wide_space(std::uint32_t c) {
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}
// Beyond ASCII, the blocks of signs that no regular expression takes for a letter or digit: curly
// quotes, dashes, currencies, arrows, mathematics. They stay in a word and bound an article.
bool is_wide_sign(std::uint32_t c) {
  if (c >= 0xa1 && c <= 0xbf) {
    constexpr std::uint32_t kLetters[] = {0xaa, 0xb2, 0xb3, 0xb5, 0xb9, 0xba, 0xbc, 0xbd, 0xbe};
    return std::find(std::begin(kLetters), std::end(kLetters), c) == std::end(kLetters);
  }
  return c == 0xd7 || c == 0xf7 || (c >= 0x2010 && c <= 0x206f) || (c >= 0x20a0 && c <= 0x20c0) ||
         (c >= 0x2190 && c <= 0x245f) || (c >= 0x2500 && c <= 0x2775) ||
         (c >= 0x3001 && c <= 0x3003) || (c >= 0x3008 && c <= 0x3020) || c == 0xfffd;
}

}  // namespace

Words words_of(std::string_view text) {
  Words out;
  bool inside = false;
  while (!text.empty()) {
    const auto [size, number] = first_character(text);
    const bool space = is_wide_space(number) || (size == 1 && is_space(text[0]));
    if (!space && !inside) out.emplace_back();
    if (!space) out.back() += text.substr(0, size);
    inside = !space;
    text.remove_prefix(size);
  }
  return out;
}

Words normalised_words(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    if (!is_punctuation(c)) plain.push_back(small(c));
  }
  Words words;
  std::string word, letters;  // `letters` since the last sign end `word`
  const auto end_letters = [&] {
    const bool article = letters == "a" || letters == "an" || letters == "the";
    if (article) {  // as a space
      word.resize(word.size() - letters.size());
      if (!word.empty()) words.push_back(std::move(word));
      word.clear();
    }
    letters.clear();
  };
  for (std::string_view rest = plain; !rest.empty();) {
    const auto [size, number] = first_character(rest);
    const bool space = is_wide_space(number) || (size == 1 && is_space(rest[0]));
    if (space || is_wide_sign(number)) end_letters();
    if (space) {
      if (!word.empty()) words.push_back(std::move(word));
      word.clear();
    } else {
      word += rest.substr(0, size);
      if (!is_wide_sign(number)) letters += rest.substr(0, size);
    }
    rest.remove_prefix(size);
  }
  end_letters();
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

}  // namespace kvspan
