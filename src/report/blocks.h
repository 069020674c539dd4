// SPDX-License-Identifier: Apache-2.0
// What a document of each kind looks like in a report. Members that a document lacks are left out;
// a document that is not built as its command builds it makes the accessors of JSON and of the
// standard library throw (.at), which report.cc turns into a warning.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "report/documents.h"

namespace kvspan {

std::vector<Block> quality_blocks(const NamedDocument& document);
// joined_quality.cc: a block for each set of eval ppl's documents that measured the same model on
// the same text in windows of the same length, two at least.
std::vector<Block> joined_quality_blocks(std::span<const NamedDocument> documents);
std::vector<Block> task_blocks(const NamedDocument& document);
std::vector<Block> speed_blocks(const NamedDocument& document);
std::vector<Block> verify_blocks(const NamedDocument& document);
std::vector<Block> inspect_blocks(const NamedDocument& document);
std::vector<Block> track_blocks(const NamedDocument& document);
// Errors against bounds alone: lines of --track, or samples of a study.
std::vector<Block> bound_blocks(const NamedDocument& document);
std::vector<Block> study_blocks(const NamedDocument& document);

// The methods of a recipe, without their values: "snapkv:keep=0.5+oja:ratio=0.6" -> "snapkv+oja".
// Names of the peer stay whole.
std::string family_of(const std::string& recipe);

// A table of the members of rows that any row has.
struct Member {
  std::string key, title, unit;
};
DataTable table_of(const Document& rows, const std::vector<Member>& members);

// x and y of rows, one series for each name that `name` gives, in order of appearance. Rows without
// one of the two, and rows of recipes that failed on the way, are left out.
template <class Name>
std::vector<Series> series_of(const Document& rows, const std::string& x, const std::string& y,
                              const Name& name) {
  std::vector<Series> out;
  for (const Document& row : rows) {
    const double along = number_of(row, x), up = number_of(row, y);
    if (along != along || up != up || !text_of(row, "failed").empty()) continue;
    const std::string called = name(row);
    std::size_t at = 0;
    while (at < out.size() && out[at].name != called) ++at;
    if (at == out.size()) out.push_back({called, {}});
    out[at].points.emplace_back(along, up);
  }
  return out;
}
// Charts of eval ppl's rows: KL and change of perplexity against the bytes held.
std::vector<Figure> quality_figures(const Document& rows,
                                    const std::function<std::string(const Document&)>& name,
                                    const std::vector<std::string>& notes);
// The table of such rows, `first` before their own members.
DataTable quality_table(const Document& rows, std::vector<Member> first);
// Where a document was measured: its CPU, or the level of its kernels where it does not say.
std::string machine_of(const Document& json);

// Points from left to right.
void sort_points(std::vector<Series>& series);

}  // namespace kvspan
