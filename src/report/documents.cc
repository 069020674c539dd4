// SPDX-License-Identifier: Apache-2.0
#include "report/documents.h"

#include <algorithm>
#include <cctype>
#include <limits>

#include "base/fail.h"

namespace kvspan {
namespace {

DocumentKind kind_of_command(const std::string& command) {
  if (command == "eval ppl") return DocumentKind::kPerplexity;
  if (command.starts_with("eval ")) return DocumentKind::kTasks;
  if (command == "bench") return DocumentKind::kBench;
  if (command == "inspect") return DocumentKind::kInspect;
  if (command == "study") return DocumentKind::kStudy;
  if (command == "verify") return DocumentKind::kVerify;
  if (command == "report") return DocumentKind::kReport;
  return DocumentKind::kOther;
}

// Of documents that do not say; kReport stands for none.
DocumentKind kind_of_content(const Document& json) {
  if (text_of(json, "task") == "ppl") return DocumentKind::kPerplexity;
  if (json.contains("resamples")) return DocumentKind::kTasks;
  if (json.contains("verdicts")) return DocumentKind::kStudy;
  if (!json.contains("rows") || !json["rows"].is_array() || json["rows"].empty()) {
    return DocumentKind::kReport;
  }
  const Document& row = json["rows"].front();
  if (row.contains("decode_tok_s") && row.contains("depth")) return DocumentKind::kBench;
  if (row.contains("kl_mean")) return DocumentKind::kVerify;
  return DocumentKind::kReport;
}

// The lists of objects that documents of a kind are made of.
std::vector<std::string> lists_of(DocumentKind kind) {
  switch (kind) {
    case DocumentKind::kPerplexity:
    case DocumentKind::kTasks:
    case DocumentKind::kBench:
    case DocumentKind::kVerify:
      return {"rows"};
    case DocumentKind::kStudy:
      return {"verdicts", "rows"};
    case DocumentKind::kInspect:
      return {"layers", "texts"};
    default:
      return {};
  }
}

Status check_lists(const NamedDocument& document) {
  for (const std::string& key : lists_of(document.kind)) {
    const auto list = document.json.find(key);
    const bool good = list != document.json.end() && list->is_array() && !list->empty() &&
                      std::all_of(list->begin(), list->end(),
                                  [](const Document& item) { return item.is_object(); });
    if (!good) {
      return fail(ErrorCode::kCorruptData, "'{}' has no \"{}\" with objects in it", document.name,
                  key);
    }
  }
  return {};
}

Result<Document> parse(std::string_view text, const std::string& name) {
  Document json = Document::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_discarded()) return json;
  try {
    json = Document::parse(text);
  } catch (const Document::parse_error& error) {
    return fail(ErrorCode::kCorruptData, "'{}' is not JSON: byte {}", name, error.byte);
  }
  return json;
}

Result<Document> parse_lines(const std::string& text, const std::string& name) {
  Document lines = Document::array();
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    ++number;
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Document json = Document::parse(line, nullptr, false);
    if (json.is_discarded() || !json.is_object()) {
      return fail(ErrorCode::kCorruptData, "'{}': line {} is not a JSON object", name, number);
    }
    lines.push_back(std::move(json));
  }
  return lines;
}

}  // namespace

Result<NamedDocument> read_document(const NamedText& file) {
  NamedDocument out;
  out.name = file.name;
  if (file.name.ends_with(".jsonl")) {
    KVSPAN_TRY(out.json, parse_lines(file.text, file.name));
    if (out.json.empty() || !out.json.front().contains("output_error")) {
      return fail(ErrorCode::kUnsupported, "'{}' has no lines of kvspan run --track", file.name);
    }
    out.kind = DocumentKind::kTrack;
    return out;
  }
  KVSPAN_TRY(out.json, parse(file.text, file.name));
  if (out.json.is_object()) {
    if (text_of(out.json, "format").starts_with("kvspan-study-")) {
      out.kind = DocumentKind::kReport;  // what a study keeps for itself
      return out;
    }
    const std::string command = text_of(out.json, "command");
    out.kind = command.empty() ? kind_of_content(out.json) : kind_of_command(command);
    if (!command.empty() || out.kind != DocumentKind::kReport) {
      KVSPAN_CHECK_OK(check_lists(out));
      return out;
    }
  }
  return fail(ErrorCode::kUnsupported, "'{}' is JSON, but not of a kvspan command", file.name);
}

Cell cell_of(const Document& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end()) return {};
  if (found->is_number()) return found->get<double>();
  if (found->is_string()) return found->get<std::string>();
  if (found->is_boolean()) return std::string(found->get<bool>() ? "yes" : "no");
  return {};
}

double number_of(const Document& object, const std::string& key) {
  const Cell cell = cell_of(object, key);
  const auto* number = std::get_if<double>(&cell);
  return number ? *number : std::numeric_limits<double>::quiet_NaN();
}

std::string text_of(const Document& object, const std::string& key) {
  const Cell cell = cell_of(object, key);
  const auto* text = std::get_if<std::string>(&cell);
  return text ? *text : std::string();
}

std::string id_of(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (plain) {
      out += c;
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
  }
  return out;
}

}  // namespace kvspan
