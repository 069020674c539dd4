// SPDX-License-Identifier: Apache-2.0
#include "report/summary.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "report/blocks.h"
#include "report/svg.h"

namespace kvspan {
namespace {

constexpr double kGoodKl = 0.01;  // nats; what a per cent of perplexity is

void add_once(std::vector<std::string>& to, std::string text) {
  if (!text.empty() && std::find(to.begin(), to.end(), text) == to.end()) {
    to.push_back(std::move(text));
  }
}

std::string model_name(const Document& json) {
  const auto model = json.find("model");
  if (model == json.end()) return "";
  const std::string path = model->is_object() ? text_of(*model, "path") : text_of(json, "model");
  return path.substr(path.find_last_of('/') + 1);
}

// Rows of quality, of eval ppl or of a study's equal bytes; those of other groups vary a method on
// purpose.
std::vector<const Document*> quality_rows(std::span<const NamedDocument> documents) {
  std::vector<const Document*> out;
  for (const NamedDocument& document : documents) {
    const bool study = document.kind == DocumentKind::kStudy;
    if (!study && document.kind != DocumentKind::kPerplexity) continue;
    for (const Document& row : document.json.at("rows")) {
      const double kl = number_of(row, "kl"), ratio = number_of(row, "kv_ratio");
      const std::string recipe = text_of(row, "recipe");
      if (recipe == "full" || recipe.starts_with("llama.cpp") || kl != kl || ratio != ratio)
        continue;
      if (!text_of(row, "failed").empty() || number_of(row, "compressed_positions") == 0.0)
        continue;
      if (study && text_of(row, "group") != "equal_bytes") continue;
      out.push_back(&row);
    }
  }
  return out;
}

std::string quality_sentence(std::span<const NamedDocument> documents) {
  const std::vector<const Document*> rows = quality_rows(documents);
  if (rows.empty()) return "";
  const Document *smallest = nullptr, *nearest = rows.front();
  for (const Document* row : rows) {
    const bool good = number_of(*row, "kl") <= kGoodKl;
    if (good &&
        (smallest == nullptr || number_of(*row, "kv_ratio") > number_of(*smallest, "kv_ratio"))) {
      smallest = row;
    }
    if (number_of(*row, "kl") < number_of(*nearest, "kl")) nearest = row;
  }
  const Document& shown_row = smallest != nullptr ? *smallest : *nearest;
  return fmt::format(
      "{} holds {:.1f} times fewer bytes than f16 at a KL of {:.4f} nats (perplexity "
      "{:+.2f} %){}.",
      text_of(shown_row, "recipe"), number_of(shown_row, "kv_ratio"), number_of(shown_row, "kl"),
      number_of(shown_row, "dppl_pct"),
      smallest != nullptr
          ? fmt::format(", the fewest of {} recipes with a KL below {}", rows.size(), kGoodKl)
          : fmt::format("; none of {} recipes has a KL below {}", rows.size(), kGoodKl));
}

// At the greatest depth of the first bench.
std::string speed_sentence(std::span<const NamedDocument> documents) {
  for (const NamedDocument& document : documents) {
    if (document.kind != DocumentKind::kBench) continue;
    double depth = 0.0;
    for (const Document& row : document.json.at("rows")) {
      if (const double at = number_of(row, "depth"); at > depth) depth = at;
    }
    std::vector<std::string> parts;
    for (const Document& row : document.json.at("rows")) {
      const double speed = number_of(row, "decode_tok_s");
      if (number_of(row, "depth") != depth || speed != speed || parts.size() == 4) continue;
      const std::string engine =
          text_of(row, "engine") == "kvspan" ? "" : text_of(row, "engine") + " ";
      parts.push_back(fmt::format("{}{} {:.1f}", engine, text_of(row, "recipe"), speed));
    }
    if (parts.empty()) continue;
    return fmt::format("Tokens a second with {} in the cache: {}.", depth, fmt::join(parts, ", "));
  }
  return "";
}

std::string verdict_sentence(std::span<const NamedDocument> documents) {
  for (const NamedDocument& document : documents) {
    if (document.kind != DocumentKind::kStudy) continue;
    std::vector<std::string> parts;
    for (const Document& verdict : document.json.at("verdicts")) {
      parts.push_back(text_of(verdict, "id") + " " + text_of(verdict, "verdict"));
    }
    return fmt::format("Of the claims about low-rank caches: {}.", fmt::join(parts, ", "));
  }
  return "";
}

const Figure* find_figure(const std::vector<Section>& sections, const std::string& name) {
  for (const Section& section : sections) {
    for (const Block& block : section.blocks) {
      for (const Figure& figure : block.figures) {
        if (figure.name == name) return &figure;
      }
    }
  }
  return nullptr;
}

}  // namespace

Summary summary_of(std::span<const NamedDocument> documents, const std::vector<Section>& sections) {
  Summary out;
  std::vector<std::string> models, machines, dates;
  for (const NamedDocument& document : documents) {
    if (!document.json.is_object()) continue;
    add_once(models, model_name(document.json));
    const auto machine = document.json.find("machine");
    if (machine != document.json.end() && machine->is_object()) {
      add_once(machines, text_of(*machine, "cpu"));
    }
    add_once(dates, text_of(document.json, "date"));
  }
  std::sort(dates.begin(), dates.end());
  if (!models.empty()) out.facts.emplace_back("Model", fmt::format("{}", fmt::join(models, ", ")));
  if (!machines.empty()) {
    out.facts.emplace_back("Machine", fmt::format("{}", fmt::join(machines, ", ")));
  }
  if (!dates.empty()) {
    out.facts.emplace_back("Measured",
                           dates.size() == 1 ? dates[0] : dates.front() + " to " + dates.back());
  }
  const std::pair<const char*, std::string> answers[] = {
      {"How many bytes for how much quality?", quality_sentence(documents)},
      {"How fast?", speed_sentence(documents)},
      {"What holds?", verdict_sentence(documents)}};
  for (const auto& [question, answer] : answers) {
    if (!answer.empty()) out.answers.emplace_back(question, answer);
  }
  for (const char* name : {"kl_against_bytes", "study_equal_bytes_kl"}) {
    const Figure* figure = find_figure(sections, name);
    if (figure == nullptr || out.figure) continue;
    out.figure = *figure;
  }
  return out;
}

}  // namespace kvspan
