// SPDX-License-Identifier: Apache-2.0
// Files of eval ppl on one model and text are drawn together, and no others.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/page.h"
#include "report/report.h"

namespace kvspan::testing {
namespace {

struct Run {
  std::string model = "aa", text = "tt", weights = "f16", cpu = "Some CPU";
  int length = 4096;
  bool says = true;  // which model and text
};
// `recipe` with this KL, and full.
NamedText file(const std::string& name, const std::string& recipe, double kl, const Run& run = {}) {
  nlohmann::json json{{"command", "eval ppl"},  {"model", "models/" + run.model + ".gguf"},
                      {"ctx", run.length},      {"windows", 4},
                      {"weights", run.weights}, {"machine", {{"cpu", run.cpu}}}};
  // As eval ppl writes it: the identity is of the weights as read, the other of the file.
  if (run.says) {
    json["model_fingerprint"] = run.model;
    json["identity"] = {{"fingerprint", run.model + run.weights}, {"text_sha256", run.text}};
  }
  json["rows"] = {{{"recipe", "full"}, {"kl", 0.0}, {"dppl_pct", 0.0}, {"kv_bytes", 94371840}},
                  {{"recipe", recipe}, {"kl", kl}, {"dppl_pct", 1.5}, {"kv_bytes", 15337408}}};
  return {name, json.dump()};
}

const DataTable* joined(const Report& report) {
  for (const Block& block : report.sections[0].blocks) {
    if (block.table.id.starts_with("quality-joined")) return &block.table;
  }
  return nullptr;
}

TEST(JoinedQuality, DrawsFilesOfOneModelAndTextTogether) {
  const std::vector<NamedText> files{
      file("a.json", "bands:bits=2", 0.0065),
      file("b.json", "quant", 0.0043, {.weights = "file", .cpu = "Another CPU"}),
      file("c.json", "static", 0.13, {.text = "uu"}),
      file("d.json", "fd", 0.11, {.model = "bb"}),
      file("e.json", "oja", 0.07, {.length = 512}),
      file("f.json", "rotate", 0.1, {.says = false})};
  const auto report = build_report(files);
  ASSERT_TRUE(report) << report.error().message;
  const DataTable* table = joined(*report);
  ASSERT_NE(table, nullptr);
  ASSERT_EQ(table->rows.size(), 4u);
  EXPECT_EQ(std::get<std::string>(table->rows[0][0]), "a.json");
  EXPECT_EQ(std::get<std::string>(table->rows[3][0]), "b.json");
  EXPECT_EQ(std::get<std::string>(table->rows[3][1]), "file");
  EXPECT_EQ(std::get<std::string>(table->rows[3][2]), "Another CPU");
  const std::string page = page_of(*report);
  for (const char* text :
       {"bands [1]", "quant [2]", "[1] a.json: weights f16, Some CPU, 4 windows",
        "and so apart: c.json, d.json, e.json, f.json", "aa.gguf, windows of 4096"}) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
  // Every file has its own block as well.
  EXPECT_EQ(report->sections[0].blocks.size(), 7u);
}

// From before "model_fingerprint": with the file's own weights the identity says the same.
TEST(JoinedQuality, TakesTheIdentityOfTheFilesOwnWeights) {
  const auto before = [](NamedText text, const char* fingerprint) {
    auto json = nlohmann::json::parse(text.text);
    json.erase("model_fingerprint");
    json["identity"]["fingerprint"] = fingerprint;
    return NamedText{text.name, json.dump()};
  };
  const NamedText now = file("a.json", "bands", 0.006);
  const NamedText own = before(file("b.json", "quant", 0.004, {.weights = "file"}), "aa");
  const NamedText copy = before(file("c.json", "fd", 0.1), "aa");
  const Report both = build_report(std::vector{now, own}).value();
  EXPECT_NE(joined(both), nullptr);
  const Report apart = build_report(std::vector{now, copy}).value();
  EXPECT_EQ(joined(apart), nullptr);
}

TEST(JoinedQuality, FilesThatDoNotSayAreNotJoined) {
  const auto report =
      build_report(std::vector<NamedText>{file("a.json", "bands", 0.006, {.says = false}),
                                          file("b.json", "quant", 0.004, {.says = false})});
  ASSERT_TRUE(report);
  EXPECT_EQ(joined(*report), nullptr);
}

TEST(QualityPicture, IsOfTheLargestSetAndNamesTheRest) {
  const auto picture =
      quality_picture(std::vector<NamedText>{file("a.json", "bands:bits=2", 0.006),
                                             file("b.json", "quant", 0.004, {.cpu = "Another CPU"}),
                                             file("c.json", "static", 0.13, {.says = false}),
                                             {"x.json", "{"}});
  ASSERT_TRUE(picture) << picture.error().message;
  EXPECT_EQ(picture->drawn, (std::vector<std::string>{"a.json", "b.json"}));
  EXPECT_EQ(picture->apart, (std::vector<std::string>{"c.json"}));
  for (const char* text :
       {"<svg", "prefers-color-scheme:dark", "bands [1]", "quant [2]", "a.json", "Another CPU",
        "data-y=\"0.006\"", "At 0, not on these axes: full [1], full [2]"}) {
    EXPECT_NE(picture->svg.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(picture->svg.find("0.13"), std::string::npos);
}

TEST(QualityPicture, RefusesToChooseBetweenModels) {
  const auto picture = quality_picture(std::vector<NamedText>{
      file("a.json", "bands", 0.006), file("d.json", "fd", 0.11, {.model = "bb"})});
  ASSERT_FALSE(picture);
  for (const char* text : {"2 sets", "a.json (models/aa.gguf)", "d.json (models/bb.gguf)"}) {
    EXPECT_NE(picture.error().message.find(text), std::string::npos) << picture.error().message;
  }
  EXPECT_FALSE(quality_picture(std::vector<NamedText>{{"b.json", "{}"}}));
}

}  // namespace
}  // namespace kvspan::testing
