// SPDX-License-Identifier: Apache-2.0
// The JSON that kvspan's commands write, told apart: by "command" where the document has it, else
// by what its rows hold, as in documents from before that key.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvspan/result.h"
#include "report/data_table.h"

namespace kvspan {

using Document = nlohmann::ordered_json;

enum class DocumentKind {
  kPerplexity,
  kTasks,
  kBench,
  kInspect,
  kStudy,
  kTrack,  // JSON lines
  kVerify,
  kOther,   // of another command: only named
  kReport,  // what `kvspan report` itself wrote, or a study for itself: left out
};

struct NamedText {
  std::string name, text;  // a file's name, which says whether it holds lines (.jsonl)
};
struct NamedDocument {
  std::string name;
  DocumentKind kind = DocumentKind::kOther;
  Document json;  // an array for lines
};

// Fails on text that is not JSON (the byte is named), on JSON that no command wrote, and where the
// list that a report is made of (rows, layers, verdicts) is missing or empty.
Result<NamedDocument> read_document(const NamedText& file);

// A member as a cell: numbers and texts as they are, yes and no for truth, nothing for null,
// anything else or no member.
Cell cell_of(const Document& object, const std::string& key);
// The number; not finite where there is none.
double number_of(const Document& object, const std::string& key);
// The text; empty where there is none.
std::string text_of(const Document& object, const std::string& key);
// Letters, digits and '-' only, for ids: "ppl smollm2.json" -> "ppl-smollm2-json".
std::string id_of(std::string_view text);

}  // namespace kvspan
