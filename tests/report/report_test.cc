// SPDX-License-Identifier: Apache-2.0
// Page, CSV and JSON of one report hold the same numbers, and what cannot be read is named.
#include "report/report.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <regex>

#include "report/page.h"
#include "report/svg.h"
#include "tests/report/svg_reading.h"

namespace kvspan::testing {
namespace {

const char* const kPpl =
    R"({"command": "eval ppl", "arguments": ["eval", "ppl", "-f", "my text.txt"],
  "version": "kvspan 9.9", "machine": {"cpu": "Some CPU", "cores": 4, "cpu_level": "neon"},
  "model": "m<1>.gguf", "ctx": 256, "windows": 2, "weights": "file", "threads": 3, "rows": [
  {"recipe": "full", "kl": 0.0, "dppl_pct": 0.0, "ppl": 17.944947425758414, "kv_bytes": 94371840, "bits": 16.0},
  {"recipe": "bands:bits=2", "kl": 0.00647079717300234, "dppl_pct": 0.6766700558470231, "ppl": 18.07,
   "kv_bytes": 15337408, "bits": 2.600336371527778, "failed": "at <3>"}]})";
const char* const kTrack =
    "{\"layer\":0,\"position\":5,\"output_error\":0.5,\"output_norm\":2,\"logit_error\":0.1,"
    "\"logit_bound\":0.4,\"output_bound\":0.75}\n"
    "{\"layer\":1,\"position\":5,\"output_error\":0.25,\"output_norm\":1,\"logit_error\":0.3,"
    "\"logit_bound\":0.2,\"output_bound\":0.5}\n";

const char* const kTasks =
    R"({"command": "eval ruler", "model": "m.gguf", "weights": "f16", "length": 512, "rows": [
  {"task": "vt", "recipe": "full", "rows": 3, "score": 0.5333333333333333, "score_low": 0.2, "score_high": 0.8,
   "kv_bytes": 640, "kv_ratio": 1},
  {"task": "vt", "recipe": "quant", "rows": 3, "score": 0.4, "score_low": 0.2, "score_high": 0.6, "score_diff": -0.1333333333333333,
   "score_diff_low": -0.4, "score_diff_high": 0, "score_p": 0.25, "kv_bytes": 200, "kv_ratio": 3.2},
  {"task": "vt", "recipe": "fd", "rows": 0, "failed": "at row 1: <why>"}]})";
const char* const kBench =
    R"({"command": "bench", "model": "m.gguf", "threads": 2, "cpu_level": "neon", "repeats": 4, "rows": [
  {"engine": "kvspan", "recipe": "full", "depth": 16, "decode_tok_s": 96.84210526, "prefill_tok_s": 118.5, "attn_ms": 0.25,
   "kv_bytes": 4096, "roofline": 0.41},
  {"engine": "kvspan", "recipe": "full", "depth": 128, "decode_tok_s": 67.4, "prefill_tok_s": 121.25, "attn_ms": 0.75,
   "kv_bytes": 32768, "roofline": 0.52}],
  "break_even": [{"recipe": "quant", "against": "full", "tokens": 4096.5, "extrapolated": true}]})";

const char* const kStudy =
    R"({"format": "kvspan-study", "version": 1, "complete": true, "command": "study",
    "arguments": ["study"], "model": {"name": "tiny"}, "environment": {"kvspan": "0.1", "machine": "Arm", "threads": 2},
    "verdicts": [{"id": "F1", "claim": "c", "falsifier": "f", "verdict": "refuted", "because": "KL 0.5",
      "would_change": "w", "numbers": [{"name": "dppl", "recipe": "static:rk=2", "value": 51.5, "low": 50, "high": 53,
      "unit": "%", "threshold": 1, "n": 9, "decides": true}]}],
    "groups": [{"name": "rank", "title": "By rank", "note": "n"}],
    "rows": [{"recipe": "full", "family": "full", "group": "rank", "kl": 0, "bits": 16, "dppl_pct": 0},
             {"recipe": "static:rk=2", "family": "static", "group": "rank", "kl": 0.38, "bits": 4, "dppl_pct": 51.5},
             {"recipe": "fd:chunk=128", "family": "fd", "group": "ablation_chunk", "label": "chunk=128", "kl": 0.2},
             {"recipe": "fd", "family": "fd", "group": "length", "kl": 0.2,
              "by_position": [{"from": 0, "to": 8, "kl": 0.1}, {"from": 8, "to": 16, "kl": 0.3}]}],
    "samples": [{"recipe": "fd", "layer": 0, "position": 3, "logit_error": 1, "logit_bound": 2,
                 "output_error": 0.1, "output_bound": 0.3, "output_norm": 1}],
    "break_even": [{"recipe": "fd", "group": "rank", "against": "full", "by": "bytes", "tokens": null, "extrapolated": false}]})";

Report report_of(const std::vector<NamedText>& files) {
  auto report = build_report(files);
  EXPECT_TRUE(report) << report.error().message;
  return report ? std::move(*report) : Report{};
}
const DataTable* find_table(const Report& report, const std::string& start) {
  for (const Section& section : report.sections) {
    for (const Block& block : section.blocks) {
      if (block.table.id.starts_with(start)) return &block.table;
    }
  }
  return nullptr;
}

// table id -> its cells, row by row, as the page holds them.
std::map<std::string, std::vector<std::string>> page_cells(const std::string& page) {
  std::map<std::string, std::vector<std::string>> out;
  static const std::regex cell(
      "<td(?: class=\"[a-z]+\")?(?: data-value=\"([^\"]*)\")?(?: data-title=\"[^\"]*\")?>([^<]*)"
      "</td>");
  for (std::size_t at = 0; (at = page.find("<table id=\"", at)) != std::string::npos;) {
    const std::size_t name = at + 11, end = page.find("</table>", at);
    auto& cells = out[page.substr(name, page.find('"', name) - name)];
    const std::string body = page.substr(at, end - at);
    for (std::sregex_iterator it(body.begin(), body.end(), cell), none; it != none; ++it) {
      cells.push_back(unescaped((*it)[1].matched ? (*it)[1] : (*it)[2]));
    }
    at = end;
  }
  return out;
}

TEST(Report, PageCsvAndJsonAgreeOnEveryCell) {
  const Report report = report_of(
      {{"p.json", kPpl}, {"t.jsonl", kTrack}, {"ruler.json", kTasks}, {"b.json", kBench}});
  const auto cells = page_cells(page_of(report));
  const auto json = nlohmann::json::parse(json_of(report));
  const std::string csv = csv_of(report);
  std::size_t numbers = 0, tables = 0;
  for (const auto& section : json["sections"]) {
    for (const auto& table : section["tables"]) {
      ++tables;
      const auto& shown_cells = cells.at(table["id"]);
      const std::size_t columns = table["columns"].size();
      ASSERT_EQ(shown_cells.size(), columns * table["rows"].size()) << table["id"];
      for (std::size_t i = 0; i < table["rows"].size(); ++i) {
        for (std::size_t j = 0; j < columns; ++j) {
          const auto& value = table["rows"][i][j];
          const std::string& on_page = shown_cells[i * columns + j];
          if (value.is_number()) {
            ++numbers;
            EXPECT_EQ(std::stod(on_page), value.get<double>());
            const std::string unit = table["columns"][j]["unit"];
            const std::string line = "," + table["id"].get<std::string>() + "," +
                                     table["source"].get<std::string>() + "," + std::to_string(i) +
                                     ",";
            const std::size_t at = csv.find("," + exact(value.get<double>()) + "\r\n");
            EXPECT_NE(at, std::string::npos) << value;
            EXPECT_NE(csv.find(line), std::string::npos) << line;
          } else {
            EXPECT_EQ(on_page, value.is_null() ? "" : value.get<std::string>());
          }
        }
      }
    }
  }
  EXPECT_EQ(tables, cells.size());
  EXPECT_GT(numbers, 30u);
}

// Every kind of measurement has a table of its own, and a chart.
TEST(Report, ShowsTasksAndSpeed) {
  const Report report = report_of({{"ruler.json", kTasks}, {"b.json", kBench}});
  EXPECT_TRUE(report.warnings.empty());
  const DataTable* tasks = find_table(report, "task-ruler");
  ASSERT_NE(tasks, nullptr);
  ASSERT_EQ(tasks->rows.size(), 3u);  // one of a recipe that failed before its first row
  EXPECT_EQ(std::get<std::string>(tasks->rows[2].back()), "at row 1: <why>");
  EXPECT_NE(find_table(report, "break-even-"), nullptr);
  const std::string page = page_of(report);
  for (const char* text : {"Scores: score", "Decoding speed against length", "512 tokens at most",
                           "Bytes of the cache against length", "at row 1: &lt;why&gt;"}) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
}

TEST(Report, HoldsTheNumbersOfTheDocuments) {
  const Report report = report_of({{"p.json", kPpl}});
  const std::string page = page_of(report);
  for (const char* number : {"17.944947425758414", "0.00647079717300234", "0.6766700558470231"}) {
    EXPECT_NE(page.find(number), std::string::npos) << number;
    EXPECT_NE(csv_of(report).find(number), std::string::npos) << number;
  }
}

TEST(Report, SaysCommandAndMachine) {
  const std::string page = page_of(report_of({{"p.json", kPpl}}));
  for (const char* text : {"kvspan eval ppl -f &#39;my text.txt&#39;", "kvspan 9.9", "Some CPU"}) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
}

TEST(Report, PageIsOneFileWithoutScriptOrNetwork) {
  const std::string page = page_of(report_of({{"p.json", kPpl}, {"t.jsonl", kTrack}}));
  for (const char* forbidden :
       {"<script", "http://", "https://", "url(", "@import", "<link", "m<1>"}) {
    EXPECT_EQ(page.find(forbidden), std::string::npos) << forbidden;
  }
  EXPECT_NE(page.find("width=device-width"), std::string::npos);
}

TEST(Report, BoundsAreCountedAgainstErrors) {
  const Report report = report_of({{"t.jsonl", kTrack}});
  const DataTable* table = find_table(report, "bound-logits");
  ASSERT_NE(table, nullptr);
  ASSERT_EQ(table->rows.size(), 3u);  // two layers, and all
  const auto& all = table->rows.back();
  EXPECT_EQ(std::get<double>(all[1]), 2.0);
  EXPECT_DOUBLE_EQ(std::get<double>(all[2]), 0.2);
  EXPECT_DOUBLE_EQ(std::get<double>(all[4]), 0.3);
  EXPECT_EQ(std::get<double>(all[6]), 1.0);  // 0.3 is above its bound of 0.2
}

TEST(Report, NamesAndLeavesOutWhatItCannotRead) {
  const Report report = report_of({{"p.json", kPpl},
                                   {"broken.json", "{"},
                                   {"other.json", "{\"a\": 1}"},
                                   {"short.json", R"({"command": "bench"})"},
                                   {"report.json", R"({"command": "report"})"}});
  ASSERT_EQ(report.warnings.size(), 3u);
  EXPECT_NE(report.warnings[0].find("broken.json"), std::string::npos);
  EXPECT_NE(report.warnings[1].find("other.json"), std::string::npos);
  EXPECT_NE(report.warnings[2].find("short.json"), std::string::npos);
  EXPECT_NE(page_of(report).find("broken.json"), std::string::npos);
  EXPECT_FALSE(build_report(std::vector<NamedText>{{"report.json", R"({"command": "report"})"}}));
}

TEST(Report, BeginsWithModelMachineDateAndASentenceToEachQuestion) {
  const std::string ppl =
      R"({"command": "eval ppl", "date": "2026-02-03", "machine": {"cpu": "Some CPU"}, "model": "/there/m.gguf",
      "ctx": 256, "windows": 2, "weights": "file", "rows": [
      {"recipe": "full", "kl": 0.0, "kv_ratio": 1.0, "kv_bytes": 800, "kv_bytes_full": 800, "dppl_pct": 0},
      {"recipe": "quant", "kl": 0.004, "kv_ratio": 3.2, "kv_bytes": 250, "kv_bytes_full": 800, "dppl_pct": 0.2},
      {"recipe": "bands", "kl": 0.009, "kv_ratio": 8.0, "kv_bytes": 100, "kv_bytes_full": 800, "dppl_pct": 0.6},
      {"recipe": "window", "kl": 0.0, "kv_ratio": 9.0, "kv_bytes": 90, "kv_bytes_full": 800, "dppl_pct": 0,
       "compressed_positions": 0},
      {"recipe": "static", "kl": 0.3, "kv_ratio": 8.0, "kv_bytes": 100, "kv_bytes_full": 800, "dppl_pct": 40}]})";
  const Report report = report_of({{"p.json", ppl}, {"b.json", kBench}, {"study.json", kStudy}});
  const Summary& summary = report.summary;
  ASSERT_EQ(summary.facts.size(), 3u);
  EXPECT_NE(summary.facts[0].second.find("m.gguf"), std::string::npos);
  EXPECT_EQ(summary.facts[1].second, "Some CPU");
  EXPECT_EQ(summary.facts[2].second, "2026-02-03");
  ASSERT_EQ(summary.answers.size(), 3u);
  EXPECT_EQ(
      summary.answers[0].second,
      "bands holds 8.0 times fewer bytes than f16 at a KL of 0.0090 nats (perplexity +0.60 %), "
      "the fewest of 3 recipes with a KL below 0.01.");
  EXPECT_NE(summary.answers[1].second.find("with 128 in the cache: full 67.4"), std::string::npos);
  EXPECT_NE(summary.answers[2].second.find("F1 refuted"), std::string::npos);
  ASSERT_TRUE(summary.figure);
  EXPECT_EQ(summary.figure->name, "kl_against_bytes");
  // Before all sections.
  const std::string page = page_of(report);
  EXPECT_LT(page.find(summary.answers[0].second), page.find("<h2>"));
}

TEST(Report, RendersAStudyOfItsFormat) {
  const Report report = report_of({{"study.json", kStudy}});
  EXPECT_TRUE(report.warnings.empty());
  for (const char* id : {"verdicts-", "verdict-numbers-", "study-rank-", "study-ablation-chunk-",
                         "study-length-", "bound-logits-", "break-even-"}) {
    EXPECT_NE(find_table(report, id), nullptr) << id;
  }
  EXPECT_NE(page_of(report).find("refuted"), std::string::npos);
}

const char* const kInspect = R"({"command": "inspect", "chunk": 4, "sides": ["key_pre", "value"],
  "texts": [{"name": "a"}, {"name": "b"}, {"name": "c"}], "layers": [{"layer": 0,
  "gains": [{"side": "key_pre", "head_bits": 1, "layer_bits": 2}, {"side": "value", "head_bits": 1, "layer_bits": 2}],
  "joint_gains": [{"side": "key_pre", "head_bits": 1, "layer_bits": 2, "key_value_bits": 3}],
  "heads": [{"side": "key_pre", "head": 0, "dim": 2, "energy": 3, "rank95": 2, "ranks": [1], "spectrum": [2, 1],
    "pairs": [{"a": 0, "b": 1, "overlap": [0.5], "retained": [0.9], "rer": [0.1]}],
    "chunks": [{"from": 0, "rank95": 1, "effective_dim": 1.5, "overlap": []},
               {"from": 4, "rank95": 1, "effective_dim": 1.5, "overlap": [0.25]}],
    "residuals": [{"from": 0, "residual": [0.5]}]},
   {"side": "value", "head": 0, "dim": 2, "energy": 3, "rank95": 2, "ranks": [1], "sensitivity": [0.1],
    "spectrum": [2, 1], "pairs": [], "chunks": [], "residuals": []}]}]})";

TEST(Report, RendersAnInspection) {
  const Report report = report_of({{"i.json", kInspect}});
  EXPECT_TRUE(report.warnings.empty());
  for (const char* id : {"ranks-", "spectra-", "residuals-", "chunks-", "texts-", "gains-"}) {
    EXPECT_NE(find_table(report, id), nullptr) << id;
  }
}

// Whatever a file holds, a report is built or refused: every member of documents taken away, or
// replaced by something of another kind.
TEST(Report, SurvivesEveryDamagedMember) {
  using Json = nlohmann::json;
  const std::vector<std::pair<std::string, Json>> documents{{"p.json", Json::parse(kPpl)},
                                                            {"i.json", Json::parse(kInspect)},
                                                            {"s.json", Json::parse(kStudy)}};
  const std::vector<Json> others{nullptr,
                                 "text",
                                 -1,
                                 1e300,
                                 true,
                                 Json::array(),
                                 Json::object(),
                                 Json::array({Json::array()}),
                                 Json::array({1, 2, 3, 4, 5})};
  std::size_t tried = 0;
  for (const auto& [name, json] : documents) {
    std::vector<Json::json_pointer> places;
    const std::function<void(const Json&, const Json::json_pointer&)> walk =
        [&](const Json& at, const Json::json_pointer& place) {
          if (!place.empty()) places.push_back(place);
          if (!at.is_structured()) return;
          for (const auto& item : at.items()) {
            walk(item.value(), at.is_array() ? place / std::stoul(item.key()) : place / item.key());
          }
        };
    walk(json, Json::json_pointer());
    for (const auto& place : places) {
      for (std::size_t i = 0; i <= others.size(); ++i) {
        Json damaged = json;
        if (i < others.size()) {
          damaged[place] = others[i];
        } else if (damaged[place.parent_pointer()].is_object()) {
          damaged[place.parent_pointer()].erase(place.back());
        }
        const auto report = build_report(std::vector<NamedText>{{name, damaged.dump()}});
        EXPECT_TRUE(!report || !page_of(*report).empty());
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 1000u);
}

TEST(Report, LongTablesAreCutOnThePageOnly) {
  nlohmann::json rows = nlohmann::json::array();
  for (int i = 0; i < 30000; ++i) {
    rows.push_back(
        {{"recipe", "quant:bits=" + std::to_string(i)}, {"kl", 0.1}, {"kv_bytes", i + 1}});
  }
  const nlohmann::json json{{"command", "eval ppl"}, {"rows", rows}};
  Report report = report_of({{"p.json", json.dump()}});
  report.sections[0].blocks[0].figures.clear();
  const std::string page = page_of(report);
  EXPECT_LT(page.size(), kMostPageBytes);
  EXPECT_NE(page.find("29600 more rows"), std::string::npos);
  EXPECT_NE(csv_of(report).find("quant:bits=29999"), std::string::npos);
}

}  // namespace
}  // namespace kvspan::testing
