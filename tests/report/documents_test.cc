// SPDX-License-Identifier: Apache-2.0
#include "report/documents.h"

#include <gtest/gtest.h>

#include "report/blocks.h"

namespace kvspan::testing {
namespace {

DocumentKind kind_of(const std::string& text, const std::string& name = "a.json") {
  auto document = read_document({name, text});
  EXPECT_TRUE(document) << document.error().message;
  return document ? document->kind : DocumentKind::kOther;
}

TEST(ReadDocument, GoesByTheCommand) {
  EXPECT_EQ(kind_of(R"({"command": "eval ppl", "rows": [{}]})"), DocumentKind::kPerplexity);
  EXPECT_EQ(kind_of(R"({"command": "eval ruler", "rows": [{}]})"), DocumentKind::kTasks);
  EXPECT_EQ(kind_of(R"({"command": "bench", "rows": [{}]})"), DocumentKind::kBench);
  EXPECT_EQ(kind_of(R"({"command": "inspect", "layers": [{}], "texts": [{}]})"),
            DocumentKind::kInspect);
  EXPECT_EQ(kind_of(R"({"command": "study", "verdicts": [{}], "rows": [{}]})"),
            DocumentKind::kStudy);
  EXPECT_EQ(kind_of(R"({"command": "verify", "rows": [{}]})"), DocumentKind::kVerify);
  EXPECT_EQ(kind_of(R"({"command": "tokenize"})"), DocumentKind::kOther);
  EXPECT_EQ(kind_of(R"({"command": "report"})"), DocumentKind::kReport);
  EXPECT_EQ(kind_of(R"({"format": "kvspan-study-settings"})"), DocumentKind::kReport);
}

TEST(ReadDocument, KnowsDocumentsThatDoNotSay) {
  EXPECT_EQ(kind_of(R"({"task": "ppl", "rows": [{}]})"), DocumentKind::kPerplexity);
  EXPECT_EQ(kind_of(R"({"task": "piqa", "resamples": 1000, "rows": [{}]})"), DocumentKind::kTasks);
  EXPECT_EQ(kind_of(R"({"rows": [{"depth": 16, "decode_tok_s": 9}]})"), DocumentKind::kBench);
  EXPECT_EQ(kind_of(R"({"rows": [{"kl_mean": 0}]})"), DocumentKind::kVerify);
  EXPECT_EQ(kind_of("{\"layer\":0,\"output_error\":1}\n\n", "t.jsonl"), DocumentKind::kTrack);
}

TEST(ReadDocument, NamesWhatIsWrong) {
  const auto error = [](const NamedText& file) {
    auto document = read_document(file);
    return document ? std::string("accepted") : document.error().message;
  };
  EXPECT_NE(error({"x.json", "{\"a\": }"}).find("byte 7"), std::string::npos);
  EXPECT_NE(error({"x.json", ""}).find("'x.json'"), std::string::npos);
  EXPECT_NE(error({"x.json", "[1, 2]"}).find("not of a kvspan command"), std::string::npos);
  EXPECT_NE(error({"x.json", "{\"rows\": [3]}"}).find("not of a kvspan"), std::string::npos);
  EXPECT_NE(error({"x.json", R"({"command": "bench", "rows": 3})"}).find("\"rows\""),
            std::string::npos);
  EXPECT_NE(error({"x.jsonl", "{\"output_error\":1}\nnonsense\n"}).find("line 2"),
            std::string::npos);
  EXPECT_NE(error({"x.jsonl", ""}).find("--track"), std::string::npos);
}

TEST(CellOf, TakesNumbersTextsAndTruth) {
  const Document row = Document::parse(R"({"n": 2.5, "t": "x", "b": true, "z": null, "l": []})");
  EXPECT_EQ(std::get<double>(cell_of(row, "n")), 2.5);
  EXPECT_EQ(std::get<std::string>(cell_of(row, "t")), "x");
  EXPECT_EQ(std::get<std::string>(cell_of(row, "b")), "yes");
  for (const char* key : {"z", "l", "missing"}) EXPECT_EQ(cell_of(row, key).index(), 0u);
}

TEST(FamilyOf, DropsValues) {
  EXPECT_EQ(family_of("bands:bits=2"), "bands");
  EXPECT_EQ(family_of("snapkv:keep=0.5+oja:ratio=0.6,store=int8"), "snapkv+oja");
  EXPECT_EQ(family_of("full"), "full");
  EXPECT_EQ(family_of("llama.cpp q4_0"), "llama.cpp q4_0");
}

TEST(IdOf, IsPlain) {
  EXPECT_EQ(id_of("ppl smollm2.json"), "ppl-smollm2-json");
  EXPECT_EQ(id_of("<x>"), "x-");
}

}  // namespace
}  // namespace kvspan::testing
