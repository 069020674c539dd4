// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks/longbench_scores.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "eval/retrieval/python_words.h"

namespace kvspan {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::vector<std::string> numbers_of(std::string_view text) {
  std::vector<std::string> out;
  bool inside = false;
  for (const char c : text) {
    if (is_digit(c)) {
      if (!inside) out.emplace_back();
      out.back().push_back(c);
    }
    inside = is_digit(c);
  }
  return out;
}

double share_of(const std::vector<std::string>& numbers, const std::string& wanted) {
  if (numbers.empty()) return 0.0;
  const auto right = std::count(numbers.begin(), numbers.end(), wanted);
  return static_cast<double>(right) / static_cast<double>(numbers.size());
}

// Sentences, which end at full stops, as words.
std::vector<Words> sentences_of(std::string_view text) {
  std::vector<Words> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('.'), text.size());
    // An empty sentence is left out; one of spaces is one empty word.
    if (end > 0) {
      Words words = words_of(text.substr(0, end));
      if (words.empty()) words.emplace_back();
      out.push_back(std::move(words));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

template <class Sequence>
std::vector<std::vector<std::size_t>> common_lengths(const Sequence& x, const Sequence& y) {
  std::vector table(x.size() + 1, std::vector<std::size_t>(y.size() + 1, 0));
  for (std::size_t i = 1; i <= x.size(); ++i) {
    for (std::size_t j = 1; j <= y.size(); ++j) {
      table[i][j] = x[i - 1] == y[j - 1] ? table[i - 1][j - 1] + 1
                                         : std::max(table[i - 1][j], table[i][j - 1]);
    }
  }
  return table;
}

// The words of the longest common subsequence; of equal ones that which the package finds.
void add_common_words(const Words& reference, const Words& answer, std::set<std::string>& to) {
  const auto table = common_lengths(reference, answer);
  for (std::size_t i = reference.size(), j = answer.size(); i > 0 && j > 0;) {
    if (reference[i - 1] == answer[j - 1]) {
      to.insert(reference[i - 1]);
      --i;
      --j;
    } else if (table[i - 1][j] > table[i][j - 1]) {
      --i;
    } else {
      --j;
    }
  }
}

std::size_t distinct_words(const std::vector<Words>& sentences) {
  std::set<std::string> words;
  for (const Words& sentence : sentences) words.insert(sentence.begin(), sentence.end());
  return words.size();
}

std::u32string code_points(std::string_view text) {
  std::u32string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0) == 0x80 && !out.empty()) {
      out.back() = (out.back() << 6) | (byte & 0x3f);
    } else {
      out.push_back(byte);
    }
  }
  return out;
}

std::string_view without_line_breaks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}

std::string_view first_code_line(std::string_view text) {
  text = without_line_breaks(text);
  while (true) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (line.find('`') == line.npos && line.find('#') == line.npos &&
        line.find("//") == line.npos) {
      return line;
    }
    if (end == text.size()) return {};
    text.remove_prefix(end + 1);
  }
}

}  // namespace

double word_f1_score(std::string_view answer, const std::string& truth, const LongBenchClasses&) {
  const Words said = normalised_words(answer), wanted = normalised_words(truth);
  std::map<std::string, std::pair<std::size_t, std::size_t>> counts;
  for (const std::string& word : said) ++counts[word].first;
  for (const std::string& word : wanted) ++counts[word].second;
  std::size_t same = 0;
  for (const auto& [word, count] : counts) same += std::min(count.first, count.second);
  if (same == 0) return 0.0;
  const double precision = static_cast<double>(same) / static_cast<double>(said.size());
  const double recall = static_cast<double>(same) / static_cast<double>(wanted.size());
  return 2.0 * precision * recall / (precision + recall);
}

double rouge_l_score(std::string_view answer, const std::string& truth, const LongBenchClasses&) {
  const auto said = sentences_of(answer), wanted = sentences_of(truth);
  if (said.empty() || wanted.empty()) return 0.0;
  std::set<std::string> common;
  for (const Words& reference : wanted) {
    for (const Words& sentence : said) add_common_words(reference, sentence, common);
  }
  const auto found = static_cast<double>(common.size());
  const double recall = found / static_cast<double>(distinct_words(wanted));
  const double precision = found / static_cast<double>(distinct_words(said));
  return 2.0 * (precision * recall / (precision + recall + 1e-8));
}

double class_score(std::string_view answer, const std::string& truth,
                   const LongBenchClasses& classes) {
  std::vector<std::string> named;
  for (const std::string& name : classes) {
    if (answer.find(name) != answer.npos) named.push_back(name);
  }
  // As in the original, a name that is removed lets the next one pass unseen.
  for (std::size_t i = 0; i < named.size(); ++i) {
    const std::string name = named[i];
    if (name != truth && truth.find(name) != truth.npos) {
      named.erase(std::find(named.begin(), named.end(), name));
    }
  }
  if (std::find(named.begin(), named.end(), truth) == named.end()) return 0.0;
  return 1.0 / static_cast<double>(named.size());
}

double count_score(std::string_view answer, const std::string& truth, const LongBenchClasses&) {
  return share_of(numbers_of(answer), truth);
}

double paragraph_score(std::string_view answer, const std::string& truth, const LongBenchClasses&) {
  constexpr std::string_view kParagraph = "Paragraph ";
  const std::size_t at = truth.find(kParagraph);
  if (at == truth.npos) return 0.0;
  std::size_t end = at + kParagraph.size();
  while (end < truth.size() && is_digit(truth[end])) ++end;
  const std::size_t begin = at + kParagraph.size();
  return share_of(numbers_of(answer), truth.substr(begin, end - begin));
}

double code_score(std::string_view answer, const std::string& truth, const LongBenchClasses&) {
  const std::string_view line = first_code_line(answer);
  if (line == truth) return 1.0;
  if (line.empty() || truth.empty()) return 0.0;
  const std::u32string said = code_points(line), wanted = code_points(truth);
  const auto common = static_cast<double>(common_lengths(said, wanted).back().back());
  const auto both = static_cast<double>(said.size() + wanted.size());
  return std::nearbyint(100.0 * 2.0 * common / both) / 100.0;
}

}  // namespace kvspan
