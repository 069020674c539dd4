// SPDX-License-Identifier: Apache-2.0
#include "report/report.h"

#include <fmt/format.h>

#include <iterator>

#include "base/fail.h"
#include "report/blocks.h"
#include "report/summary.h"

namespace kvspan {
namespace {

struct SectionKind {
  DocumentKind kind;
  const char *id, *title, *intro;
  std::vector<Block> (*blocks)(const NamedDocument&);
};
const SectionKind kSections[] = {
    {DocumentKind::kStudy, "study", "Study",
     "What would refute the claims about low-rank caches, and what was found.", study_blocks},
    {DocumentKind::kPerplexity, "quality", "Quality against bytes",
     "How far each cache is from the full one, for the bytes that it holds. Lower and further left "
     "is better.",
     quality_blocks},
    {DocumentKind::kTasks, "tasks", "Tasks", "Scores of recipes on tasks.", task_blocks},
    {DocumentKind::kBench, "speed", "Speed against length",
     "Decoding, reading and time in attention by the number of tokens in the cache.", speed_blocks},
    {DocumentKind::kInspect, "spectra", "Spectra and ranks",
     "How many directions keys and values need, where, and whether directions carry over.",
     inspect_blocks},
    {DocumentKind::kTrack, "bounds", "Errors and bounds",
     "Attention errors of single steps against exact attention, beside what was certified.",
     track_blocks},
    {DocumentKind::kVerify, "verify", "Logits against llama.cpp",
     "The engine's distance from an independent one.", verify_blocks},
};

std::string model_of(const Document& json) {
  if (json.contains("model") && json.at("model").is_object()) {
    return text_of(json.at("model"), "name");
  }
  return text_of(json, "model");
}

// As one would type it: words with anything but plain characters in single quotes.
std::string command_line(const Document& json) {
  if (!json.contains("arguments") || !json.at("arguments").is_array()) return "";
  std::string out = "kvspan";
  for (const Document& argument : json.at("arguments")) {
    const std::string word = argument.is_string() ? argument.get<std::string>() : argument.dump();
    const bool plain =
        !word.empty() && word.find_first_not_of(
                             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                             "-_./:=,+@%") == std::string::npos;
    if (plain) {
      out += " " + word;
      continue;
    }
    out += " '";
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    out += "'";
  }
  return out;
}

const char* name_of(DocumentKind kind) {
  switch (kind) {
    case DocumentKind::kPerplexity:
      return "eval ppl";
    case DocumentKind::kTasks:
      return "eval task";
    case DocumentKind::kBench:
      return "bench";
    case DocumentKind::kTrack:
      return "run --track";
    case DocumentKind::kVerify:
      return "verify";
    default:
      return "";
  }
}

std::vector<Cell> source_row(const NamedDocument& document) {
  static const Document kEmpty = Document::object();
  const Document& json = document.json.is_object() ? document.json : kEmpty;
  const auto member = [&](const char* key) -> const Document& {
    return json.contains(key) && json.at(key).is_object() ? json.at(key) : kEmpty;
  };
  const Document &machine = member("machine"), &environment = member("environment");
  std::string cpu = text_of(machine, "cpu");
  if (cpu.empty()) cpu = text_of(environment, "machine");
  std::string version = text_of(json, "version");
  if (version.empty()) version = text_of(environment, "kvspan");
  const auto either = [&](const Document& first, const Document& second, const char* key) {
    const Cell cell = cell_of(first, key);
    return std::holds_alternative<std::monostate>(cell) ? cell_of(second, key) : cell;
  };
  const std::string command = text_of(json, "command");
  return {
      document.name,
      command.empty() ? std::string(name_of(document.kind)) : command,
      command_line(json),
      model_of(json),
      version,
      cpu,
      cell_of(machine, "cores"),
      either(json, environment, "threads"),
      either(json, either(machine, environment, "cpu_level").index() == 0 ? environment : machine,
             "cpu_level"),
      cell_of(machine, "system")};
}

Section source_section() {
  Section section{"sources",
                  "Sources and environment",
                  "Every file that this page was made from, with the exact command where the file "
                  "says it.",
                  {}};
  Block block;
  block.table.id = "sources";
  block.table.title = "Files";
  block.table.columns = {{"file", ""},    {"command", ""}, {"command line", ""}, {"model", ""},
                         {"version", ""}, {"CPU", ""},     {"cores", ""},        {"threads", ""},
                         {"kernels", ""}, {"system", ""}};
  section.blocks.push_back(std::move(block));
  return section;
}

// What several files say together, before what each says.
void add_joined(std::span<const NamedDocument> qualities, Report& report) {
  std::vector<Block> blocks = joined_quality_blocks(qualities);
  for (Block& block : blocks) block.table.source = "several files";
  for (Section& section : report.sections) {
    if (section.id != "quality") continue;
    section.blocks.insert(section.blocks.begin(), std::make_move_iterator(blocks.begin()),
                          std::make_move_iterator(blocks.end()));
  }
}

}  // namespace

Result<Report> build_report(std::span<const NamedText> files) {
  Report report;
  for (const SectionKind& kind : kSections) {
    report.sections.push_back({kind.id, kind.title, kind.intro, {}});
  }
  Section sources = source_section();
  std::vector<NamedDocument> qualities, others;
  for (const NamedText& file : files) {
    auto document = read_document(file);
    if (!document) {
      report.warnings.push_back(document.error().message);
      continue;
    }
    if (document->kind == DocumentKind::kReport) continue;
    try {
      for (std::size_t i = 0; i < std::size(kSections); ++i) {
        if (kSections[i].kind != document->kind) continue;
        std::vector<Block> blocks = kSections[i].blocks(*document);
        for (Block& block : blocks) {
          block.table.source = file.name;
          report.sections[i].blocks.push_back(std::move(block));
        }
      }
    } catch (const std::exception& error) {
      report.warnings.push_back(
          fmt::format("'{}' is not built as its command builds it: {}", file.name, error.what()));
      continue;
    }
    sources.blocks[0].table.add(source_row(*document));
    auto& of_kind = document->kind == DocumentKind::kPerplexity ? qualities : others;
    of_kind.push_back(std::move(*document));
  }
  add_joined(qualities, report);
  for (Section& section : report.sections) {
    for (Block& block : section.blocks) {
      std::erase_if(block.figures, [](const Figure& figure) { return !shows_something(figure); });
    }
  }
  qualities.insert(qualities.end(), std::make_move_iterator(others.begin()),
                   std::make_move_iterator(others.end()));
  try {
    report.summary = summary_of(qualities, report.sections);
  } catch (const std::exception& error) {
    report.warnings.push_back(fmt::format("no summary: {}", error.what()));
  }
  std::erase_if(report.sections, [](const Section& section) { return section.blocks.empty(); });
  if (report.sections.empty()) {
    std::string found;
    for (const std::string& warning : report.warnings) found += "; " + warning;
    return fail(ErrorCode::kNotFound,
                "nothing to report: no document of eval, bench, inspect, "
                "study, verify or run --track{}",
                found);
  }
  sources.blocks[0].table.source = "all files";
  report.sections.push_back(std::move(sources));
  return report;
}

}  // namespace kvspan
