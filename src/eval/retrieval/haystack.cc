// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval/haystack.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/expect.h"
#include "eval/retrieval/random_text.h"

namespace kvspan {
namespace {

constexpr std::size_t kDepths = 40;
constexpr std::array<std::string_view, 8> kAbbreviations{"Mr",     "Mrs", "Dr",  "St",
                                                         "Messrs", "No",  "Esq", "Capt"};

bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}
bool is_capital(char c) {
  return c >= 'A' && c <= 'Z';
}
bool is_quote(char c) {
  return c == '"' || c == '\'';
}

// Whether the full stop at `at` ends the word before it rather than a sentence.
bool is_abbreviation(std::string_view text, std::size_t at) {
  std::size_t begin = at;
  while (begin > 0 && !is_blank(text[begin - 1]) && !is_quote(text[begin - 1])) --begin;
  const std::string_view word = text.substr(begin, at - begin);
  if (word.size() == 1 && is_capital(word[0])) return word != "I";
  return std::find(kAbbreviations.begin(), kAbbreviations.end(), word) != kAbbreviations.end();
}

}  // namespace

std::string first_words(std::string_view text, std::size_t count) {
  std::string out;
  std::size_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    while (at < text.size() && is_blank(text[at])) ++at;
    if (at == text.size()) {
      KVSPAN_EXPECT(i > 0, "a text with words");
      at = 0;
      while (is_blank(text[at])) ++at;
    }
    const std::size_t begin = at;
    while (at < text.size() && !is_blank(text[at])) ++at;
    if (!out.empty()) out.push_back(' ');
    out += text.substr(begin, at - begin);
  }
  return out;
}

std::vector<std::string> sentences_of(std::string_view text) {
  std::vector<std::string> out;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '.' && text[i] != '!' && text[i] != '?') continue;
    std::size_t end = i + 1;
    while (end < text.size() && (is_quote(text[end]) || text[end] == ')')) ++end;
    if (end >= text.size() || !is_blank(text[end])) continue;
    std::size_t next = end;
    while (next < text.size() && is_blank(text[next])) ++next;
    if (next < text.size()) {
      const char first = text[next];
      const bool begins = is_capital(first) || is_quote(first) || (first >= '0' && first <= '9');
      if (!begins || (text[i] == '.' && end == i + 1 && is_abbreviation(text, i))) continue;
    }
    out.emplace_back(text.substr(begin, end - begin));
    begin = next;
    i = next - 1;
  }
  if (begin < text.size()) out.emplace_back(text.substr(begin));
  return out;
}

std::string hide_at_depths(const std::vector<std::string>& sentences,
                           const std::vector<std::string>& needles, Random& random) {
  std::vector<std::size_t> places;
  for (const std::size_t i : draw(needles.size(), kDepths, random)) {
    const double percent = std::round(100.0 * static_cast<double>(i) / (kDepths - 1));
    places.push_back(
        static_cast<std::size_t>(static_cast<double>(sentences.size()) * (percent / 100.0)));
  }
  std::sort(places.begin(), places.end());
  std::vector<std::string> parts;
  for (std::size_t i = 0, needle = 0; i <= sentences.size(); ++i) {
    while (needle < needles.size() && places[needle] == i) parts.push_back(needles[needle++]);
    if (i < sentences.size()) parts.push_back(sentences[i]);
  }
  return join(parts, " ");
}

std::vector<std::string> hide_between(std::vector<std::string> lines,
                                      const std::vector<std::string>& needles, Random& random) {
  std::vector<std::size_t> places = draw(needles.size(), lines.size(), random);
  std::sort(places.begin(), places.end());
  for (std::size_t i = 0; i < needles.size(); ++i) {
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(places[i] + i), needles[i]);
  }
  return lines;
}

}  // namespace kvspan
