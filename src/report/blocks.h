// SPDX-License-Identifier: Apache-2.0
// What a document of each kind looks like in a report. Members that a document lacks are left out;
// a document that is not built as its command builds it makes the accessors of JSON and of the
// standard library throw (.at), which report.cc turns into a warning.
#pragma once

#include <string>
#include <vector>

#include "report/documents.h"

namespace kvspan {

std::vector<Block> quality_blocks(const NamedDocument& document);
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
// one of the two are left out.
template <class Name>
std::vector<Series> series_of(const Document& rows, const std::string& x, const std::string& y,
                              const Name& name) {
  std::vector<Series> out;
  for (const Document& row : rows) {
    const double along = number_of(row, x), up = number_of(row, y);
    if (along != along || up != up) continue;
    const std::string called = name(row);
    std::size_t at = 0;
    while (at < out.size() && out[at].name != called) ++at;
    if (at == out.size()) out.push_back({called, {}});
    out[at].points.emplace_back(along, up);
  }
  return out;
}
// Points from left to right.
void sort_points(std::vector<Series>& series);

}  // namespace kvspan
