// SPDX-License-Identifier: Apache-2.0
// How LongBench compares an answer with what was expected, 0..1. Letters are made small and words
// are told apart as its scripts do, for ASCII; other characters stay as they are.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvspan {

using LongBenchClasses = std::vector<std::string>;

// F1 of words, without case, punctuation and articles.
double word_f1_score(std::string_view answer, const std::string& truth, const LongBenchClasses&);
// F of ROUGE-L over sentences, counting distinct words, as the Python package rouge 1.0.1 computes
// it.
double rouge_l_score(std::string_view answer, const std::string& truth, const LongBenchClasses&);
// 1 over the number of classes named, if the right one is among them.
double class_score(std::string_view answer, const std::string& truth,
                   const LongBenchClasses& classes);
// Share of the answer's numbers that are the expected one.
double count_score(std::string_view answer, const std::string& truth, const LongBenchClasses&);
// The same, of "Paragraph N".
double paragraph_score(std::string_view answer, const std::string& truth, const LongBenchClasses&);
// Similarity of the first line that is no comment: twice the longest common subsequence over both
// lengths, in whole per cent, as fuzzywuzzy with python-Levenshtein has it.
double code_score(std::string_view answer, const std::string& truth, const LongBenchClasses&);

}  // namespace kvspan
