// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval/ruler.h"

#include <array>

#include "base/fail.h"
#include "base/spelling.h"

namespace kvspan {
namespace {

using Haystack = NiahOptions::Haystack;
using Name = NiahOptions::Name;

constexpr std::array kRulerTasks{
    RulerTaskInfo{"niah_single_1", "A number in noise"},
    RulerTaskInfo{"niah_single_2", "A number in prose"},
    RulerTaskInfo{"niah_single_3", "A UUID in prose"},
    RulerTaskInfo{"niah_multikey_1", "One of four numbers in prose"},
    RulerTaskInfo{"niah_multikey_2", "A number among needles only"},
    RulerTaskInfo{"niah_multikey_3", "A UUID by UUID among needles only"},
    RulerTaskInfo{"niah_multivalue", "Four numbers of one key in prose"},
    RulerTaskInfo{"niah_multiquery", "The numbers of four keys in prose"},
    RulerTaskInfo{"vt", "Variables of a chain of assignments"},
    RulerTaskInfo{"cwe", "Ten common words of a list"},
    RulerTaskInfo{"fwe", "Three frequent made-up words"},
    RulerTaskInfo{"qa_1", "A question on one of many passages (SQuAD)"},
    RulerTaskInfo{"qa_2", "A question on two of many passages (HotpotQA)"},
};

struct Niah {
  std::string_view name;
  NiahOptions options;  // haystack, keys, values, keys hidden, values of each, keys asked for
};
constexpr std::array kNiah{
    Niah{"niah_single_1", {Haystack::kNoise, Name::kWords, Name::kNumbers, 1, 1, 1}},
    Niah{"niah_single_2", {Haystack::kProse, Name::kWords, Name::kNumbers, 1, 1, 1}},
    Niah{"niah_single_3", {Haystack::kProse, Name::kWords, Name::kUuids, 1, 1, 1}},
    Niah{"niah_multikey_1", {Haystack::kProse, Name::kWords, Name::kNumbers, 4, 1, 1}},
    Niah{"niah_multikey_2", {Haystack::kNeedles, Name::kWords, Name::kNumbers, 1, 1, 1}},
    Niah{"niah_multikey_3", {Haystack::kNeedles, Name::kUuids, Name::kUuids, 1, 1, 1}},
    Niah{"niah_multivalue", {Haystack::kProse, Name::kWords, Name::kNumbers, 1, 4, 1}},
    Niah{"niah_multiquery", {Haystack::kProse, Name::kWords, Name::kNumbers, 4, 1, 4}},
};

}  // namespace

std::span<const RulerTaskInfo> all_ruler_tasks() noexcept {
  return kRulerTasks;
}

Result<RetrievalTask> ruler_task(std::string_view name, std::size_t length,
                                 const RetrievalData& data) {
  const std::string text(name);
  for (const Niah& niah : kNiah) {
    if (niah.name == name) return niah_task(text, niah.options, data);
  }
  if (name == "vt") return variable_tracking_task(text, {});
  if (name == "cwe") return common_words_task(text, length, data);
  if (name == "fwe") return frequent_words_task(text, length);
  if (name == "qa_1" && !data.squad.empty()) return document_qa_task(text, data.squad);
  if (name == "qa_2" && !data.hotpotqa.empty()) return document_qa_task(text, data.hotpotqa);
  if (name == "qa_1" || name == "qa_2") {
    return fail(ErrorCode::kNotFound, "{} needs questions, and there are none", name);
  }
  std::vector<std::string> names;
  for (const RulerTaskInfo& task : kRulerTasks) names.emplace_back(task.name);
  return fail(ErrorCode::kInvalidArgument, "RULER has no task '{}'{} (its tasks: {})", name,
              did_you_mean(name, names), fmt::join(names, ", "));
}

}  // namespace kvspan
