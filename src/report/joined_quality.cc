// SPDX-License-Identifier: Apache-2.0
// Documents of eval ppl drawn together: those that say the same model (by the fingerprint of its
// file), the same text (by its checksum) and the same length of windows. Machines, weights and the
// number of windows may differ; each series says which file it is from, and each file what it was
// measured with.
#include <fmt/ranges.h>

#include "base/fail.h"
#include "report/blocks.h"
#include "report/report.h"

namespace kvspan {
namespace {

struct Group {
  std::string key;  // empty: a document that does not say its model and text
  std::vector<const NamedDocument*> documents;
};

std::string key_of(const Document& json) {
  const auto identity = json.find("identity");
  if (identity == json.end() || !identity->is_object()) return "";
  const std::string text = text_of(*identity, "text_sha256");
  // The identity's fingerprint is of the weights as they were read: the file's own, or a copy's.
  std::string model = text_of(json, "model_fingerprint");
  if (model.empty() && text_of(json, "weights") == "file") {
    model = text_of(*identity, "fingerprint");
  }
  const double length = number_of(json, "ctx");
  if (model.empty() || text.empty() || length != length) return "";
  return fmt::format("{} {} {}", model, text, length);
}

std::vector<Group> groups_of(std::span<const NamedDocument> documents) {
  std::vector<Group> out;
  for (const NamedDocument& document : documents) {
    const std::string key = key_of(document.json);
    std::size_t at = 0;
    while (at < out.size() && (key.empty() || out[at].key != key)) ++at;
    if (at == out.size()) out.push_back({key, {}});
    out[at].documents.push_back(&document);
  }
  return out;
}

std::vector<std::string> files_named(std::span<const NamedDocument> documents) {
  std::vector<std::string> out;
  for (const NamedDocument& document : documents) {
    out.push_back(fmt::format("{} ({})", document.name, text_of(document.json, "model")));
  }
  return out;
}

std::string file_name_of(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

std::string about(const Document& json) {
  const double windows = number_of(json, "windows");
  return fmt::format("weights {}, {}{}", text_of(json, "weights"), machine_of(json),
                     windows == windows ? fmt::format(", {} windows", windows) : "");
}

// "[1] ppl.json: weights f16, Arm Neoverse-N1, 4 windows"
std::vector<std::string> notes_of(const Group& group) {
  std::vector<std::string> out;
  for (const NamedDocument* document : group.documents) {
    out.push_back(
        fmt::format("[{}] {}: {}", out.size() + 1, document->name, about(document->json)));
  }
  return out;
}

// The rows of all files, each with what it was measured with.
Document rows_of(const Group& group) {
  Document rows = Document::array();
  std::size_t number = 0;
  for (const NamedDocument* document : group.documents) {
    ++number;
    for (Document row : document->json.at("rows")) {
      row["file"] = document->name;
      row["number"] = number;
      row["machine"] = machine_of(document->json);
      row["weights"] = text_of(document->json, "weights");
      row["windows"] = document->json.contains("windows") ? document->json["windows"] : Document();
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::string series_name(const Document& row) {
  return fmt::format("{} [{}]", family_of(text_of(row, "recipe")), number_of(row, "number"));
}

}  // namespace

std::vector<Block> joined_quality_blocks(std::span<const NamedDocument> documents) {
  std::vector<Block> out;
  std::string alone;
  for (const Group& group : groups_of(documents)) {
    if (group.documents.size() < 2) {
      alone += (alone.empty() ? "" : ", ") + group.documents[0]->name;
      continue;
    }
    Block block;
    const Document rows = rows_of(group);
    block.table = quality_table(rows, {{"file", "file", ""},
                                       {"weights", "weights", ""},
                                       {"machine", "machine", ""},
                                       {"windows", "windows", ""}});
    block.table.id = fmt::format("quality-joined-{}", out.size() + 1);
    const Document& first = group.documents[0]->json;
    block.table.title =
        fmt::format("Quality against bytes, files together: {}, windows of {} tokens",
                    file_name_of(text_of(first, "model")), number_of(first, "ctx"));
    block.note =
        "The same model and the same text. Weights as in a quantized file make ggml round "
        "activations, which is a part of every KL; the form of the weights and the number of "
        "windows stand with each file: good for large distances, not for small ones.";
    block.figures = quality_figures(rows, series_name, notes_of(group));
    out.push_back(std::move(block));
  }
  for (Block& block : out) {
    if (!alone.empty()) {
      block.note +=
          " Of another model, text or length, or without a word on it, and so apart: " + alone +
          ".";
    }
  }
  return out;
}

Result<QualityPicture> quality_picture(std::span<const NamedText> files) {
  std::vector<NamedDocument> documents;
  for (const NamedText& file : files) {
    auto document = read_document(file);
    if (document && document->kind == DocumentKind::kPerplexity) {
      documents.push_back(std::move(*document));
    }
  }
  const std::vector<Group> groups = groups_of(documents);
  if (groups.empty()) return fail(ErrorCode::kNotFound, "no document of eval ppl to draw");
  const Group* most = &groups[0];
  for (const Group& group : groups) {
    if (group.documents.size() > most->documents.size()) most = &group;
  }
  QualityPicture out;
  std::size_t as_many = 0;
  for (const Group& group : groups) {
    as_many += group.documents.size() == most->documents.size();
    for (const NamedDocument* document : group.documents) {
      (&group == most ? out.drawn : out.apart).push_back(document->name);
    }
  }
  if (as_many > 1) {
    return fail(ErrorCode::kInvalidArgument,
                "{} sets of eval ppl's files are of different models, texts or lengths of windows "
                "(or do not say); keep those of one in the folder: {}",
                as_many, fmt::join(files_named(documents), ", "));
  }
  const bool one = most->documents.size() == 1;
  const auto family = [](const Document& row) { return family_of(text_of(row, "recipe")); };
  std::vector<std::string> notes = notes_of(*most);
  if (one) notes = {fmt::format("{}: {}", out.drawn[0], about(most->documents[0]->json))};
  const std::vector<Figure> figures = one ? quality_figures(rows_of(*most), family, notes)
                                          : quality_figures(rows_of(*most), series_name, notes);
  out.svg = svg_of(figures[0], Setting::kFile);
  return out;
}

}  // namespace kvspan
