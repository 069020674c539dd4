// SPDX-License-Identifier: Apache-2.0
// The prompts of retrieval tasks, one file for each kind. `data` has to outlive the task.
#pragma once

#include "eval/retrieval/retrieval.h"

namespace kvspan {

// niah.cc: needles, "One of the special magic numbers for KEY is: VALUE.", in a haystack.
struct NiahOptions {
  enum class Haystack {
    kNoise,    // five short sentences over and over
    kProse,    // RetrievalData::haystack
    kNeedles,  // needles of other keys
  };
  enum class Name { kWords, kNumbers, kUuids };  // adjective-noun, 7 digits, version 4
  Haystack haystack = Haystack::kNoise;
  Name keys = Name::kWords;
  Name values = Name::kNumbers;
  std::size_t key_count = 1;
  std::size_t values_per_key = 1;
  std::size_t asked = 1;  // keys that the question names, at most key_count
};
RetrievalTask niah_task(std::string name, const NiahOptions& options, const RetrievalData& data);

// variable_tracking.cc: a chain of assignments hidden in noise, after a solved example; all its
// variables are asked for.
struct ChainOptions {
  std::size_t chains = 1;  // the first is asked for
  std::size_t hops = 4;
};
RetrievalTask variable_tracking_task(std::string name, const ChainOptions& options);

// common_words.cc: a numbered list of words, ten of which are far more frequent, after a solved
// example. Prompts of less than 4096 tokens repeat words less.
RetrievalTask common_words_task(std::string name, std::size_t length, const RetrievalData& data);

// frequent_words.cc: made-up words whose frequency falls with the square of their rank; the second
// to fourth are asked for, the first is dots.
RetrievalTask frequent_words_task(std::string name, std::size_t length);

// document_qa.cc: a question on one of many documents.
RetrievalTask document_qa_task(std::string name, const std::vector<DocumentQuestion>& questions);

// passkey.cc: five digits in prose. Source: Mohtashami and Jaggi, Landmark Attention, 2023.
RetrievalTask passkey_task(const RetrievalData& data);

// key_value_lookup.cc: one of many pairs of a JSON object. Source: Liu et al., Lost in the Middle,
// 2023.
RetrievalTask key_value_lookup_task();

}  // namespace kvspan
