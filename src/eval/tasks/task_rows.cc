// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks/task_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/fail.h"

namespace kvspan {
namespace {

using Json = nlohmann::json;

std::string_view kind_of(const Json& json) {
  return json.type_name();
}

Result<const Json*> field(const Json& row, const char* key, Json::value_t type,
                          std::string_view wanted) {
  const auto found = row.find(key);
  if (found == row.end()) return fail(ErrorCode::kCorruptData, "'{}' is missing", key);
  if (found->type() != type) {
    return fail(ErrorCode::kCorruptData, "'{}' has to be {}, not {}", key, wanted, kind_of(*found));
  }
  return &*found;
}

Result<std::string> text_field(const Json& row, const char* key, bool may_be_empty = false) {
  KVSPAN_TRY(const Json* found, field(row, key, Json::value_t::string, "a string"));
  std::string text = found->get<std::string>();
  if (text.empty() && !may_be_empty) return fail(ErrorCode::kCorruptData, "'{}' is empty", key);
  return text;
}

Result<std::vector<std::string>> texts_field(const Json& row, const char* key, std::size_t least) {
  KVSPAN_TRY(const Json* found, field(row, key, Json::value_t::array, "an array of strings"));
  std::vector<std::string> out;
  for (const Json& item : *found) {
    if (!item.is_string()) {
      return fail(ErrorCode::kCorruptData, "'{}' has to hold strings, not {}", key, kind_of(item));
    }
    if (item.get_ref<const std::string&>().empty()) {
      return fail(ErrorCode::kCorruptData, "'{}' holds an empty string", key);
    }
    out.push_back(item.get<std::string>());
  }
  if (out.size() < least) {
    return fail(ErrorCode::kCorruptData, "'{}' has {} of at least {} strings", key, out.size(),
                least);
  }
  return out;
}

Result<std::size_t> gold_field(const Json& row, std::size_t choices) {
  const auto found = row.find("gold");
  if (found == row.end()) return fail(ErrorCode::kCorruptData, "'gold' is missing");
  if (!found->is_number_unsigned() || found->get<std::uint64_t>() >= choices) {
    return fail(ErrorCode::kCorruptData, "'gold' is {}, allowed: 0 to {}", found->dump(),
                choices - 1);
  }
  return found->get<std::size_t>();
}

double characters(std::string_view text) {  // code points, as Python counts them
  return static_cast<double>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
  }));
}

// Calls `add` with the object of every line that is not blank.
template <class Add>
Status each_line(std::string_view text, std::string_view source, const Add& add) {
  std::size_t number = 0, rows = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Json row = Json::parse(line, nullptr, false);
    Status status;
    if (row.is_discarded()) {
      status = fail(ErrorCode::kCorruptData, "is not JSON in UTF-8");
    } else if (!row.is_object()) {
      status = fail(ErrorCode::kCorruptData, "has to be an object, not {}", kind_of(row));
    } else {
      status = add(row);
    }
    if (!status) {
      return fail(status.error().code, "'{}' line {}: {}", source, number, status.error().message);
    }
    ++rows;
  }
  if (rows == 0) return fail(ErrorCode::kCorruptData, "'{}' has no rows", source);
  return {};
}

Result<ChoiceRow> choice_row(const Json& row) {
  ChoiceRow out;
  if (row.contains("contexts")) {
    KVSPAN_TRY(const auto contexts, texts_field(row, "contexts", 2));
    KVSPAN_TRY(const std::string continuation, text_field(row, "continuation"));
    for (const std::string& context : contexts) {
      out.branches.push_back({context, continuation, characters(continuation)});
    }
  } else {
    KVSPAN_TRY(const std::string query, text_field(row, "query"));
    KVSPAN_TRY(const auto choices, texts_field(row, "choices", 2));
    for (const std::string& choice : choices) {
      out.branches.push_back({query, " " + choice, characters(choice)});
    }
  }
  KVSPAN_TRY(out.gold, gold_field(row, out.branches.size()));
  return out;
}

Result<DocumentQuestion> hotpot_question(const Json& row) {
  if (!row.is_object()) return fail(ErrorCode::kCorruptData, "is {}, not an object", kind_of(row));
  DocumentQuestion out;
  KVSPAN_TRY(out.question, text_field(row, "question"));
  KVSPAN_TRY(auto answer, text_field(row, "answer"));
  out.answers.push_back(std::move(answer));
  KVSPAN_TRY(const Json* context, field(row, "context", Json::value_t::array, "an array"));
  for (const Json& document : *context) {
    if (!document.is_array() || document.size() != 2 || !document[0].is_string() ||
        !document[1].is_array()) {
      return fail(ErrorCode::kCorruptData, "'context' has to hold [title, [sentence...]]");
    }
    std::string text = document[0].get<std::string>() + "\n";
    for (const Json& sentence : document[1]) {
      if (!sentence.is_string()) {
        return fail(ErrorCode::kCorruptData, "'context' holds a sentence that is not a string");
      }
      text += sentence.get_ref<const std::string&>();
    }
    out.documents.push_back(std::move(text));
  }
  if (out.documents.empty()) return fail(ErrorCode::kCorruptData, "'context' is empty");
  return out;
}

}  // namespace

Result<std::vector<ChoiceRow>> parse_choice_rows(std::string_view text, std::string_view source) {
  std::vector<ChoiceRow> rows;
  KVSPAN_CHECK_OK(each_line(text, source, [&](const Json& json) -> Status {
    KVSPAN_TRY(auto row, choice_row(json));
    rows.push_back(std::move(row));
    return {};
  }));
  return rows;
}

Result<std::vector<TargetRow>> parse_target_rows(std::string_view text, std::string_view source) {
  std::vector<TargetRow> rows;
  KVSPAN_CHECK_OK(each_line(text, source, [&](const Json& json) -> Status {
    TargetRow row;
    KVSPAN_TRY(row.prompt, text_field(json, "prompt", true));
    KVSPAN_TRY(row.target, text_field(json, "target"));
    rows.push_back(std::move(row));
    return {};
  }));
  return rows;
}

Result<std::vector<DocumentQuestion>> parse_squad_rows(std::string_view text,
                                                       std::string_view source) {
  std::vector<DocumentQuestion> rows;
  std::vector<std::string> titles;
  KVSPAN_CHECK_OK(each_line(text, source, [&](const Json& json) -> Status {
    DocumentQuestion row;
    KVSPAN_TRY(auto title, text_field(json, "title"));
    KVSPAN_TRY(auto context, text_field(json, "context"));
    KVSPAN_TRY(row.question, text_field(json, "question"));
    KVSPAN_TRY(row.answers, texts_field(json, "answers", 1));
    row.documents.push_back(std::move(context));
    titles.push_back(std::move(title));
    rows.push_back(std::move(row));
    return {};
  }));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    auto& near = rows[i].distractors;
    for (std::size_t j = 0; j < rows.size(); ++j) {
      const std::string& other = rows[j].documents.front();
      if (titles[i] == titles[j] && other != rows[i].documents.front()) near.push_back(other);
    }
    std::sort(near.begin(), near.end());
    near.erase(std::unique(near.begin(), near.end()), near.end());
  }
  return rows;
}

Result<std::vector<LongBenchRow>> parse_longbench_rows(std::string_view text,
                                                       std::string_view source) {
  std::vector<LongBenchRow> rows;
  KVSPAN_CHECK_OK(each_line(text, source, [&](const Json& json) -> Status {
    LongBenchRow row;
    KVSPAN_TRY(row.dataset, text_field(json, "dataset"));
    KVSPAN_TRY(row.input, text_field(json, "input", true));
    KVSPAN_TRY(row.context, text_field(json, "context"));
    KVSPAN_TRY(row.answers, texts_field(json, "answers", 1));
    const auto classes = json.find("all_classes");
    if (classes != json.end() && !classes->is_null()) {
      KVSPAN_TRY(row.classes, texts_field(json, "all_classes", 0));
    }
    rows.push_back(std::move(row));
    return {};
  }));
  return rows;
}

Result<std::vector<DocumentQuestion>> parse_hotpotqa(std::string_view text,
                                                     std::string_view source) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_array() || json.empty()) {
    return fail(ErrorCode::kCorruptData, "'{}' is not HotpotQA's: a JSON array of questions",
                source);
  }
  std::vector<DocumentQuestion> rows;
  for (std::size_t i = 0; i < json.size(); ++i) {
    auto row = hotpot_question(json[i]);
    if (!row) {
      return fail(row.error().code, "'{}' question {}: {}", source, i + 1, row.error().message);
    }
    rows.push_back(std::move(*row));
  }
  return rows;
}

}  // namespace kvspan
