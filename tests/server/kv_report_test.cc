// SPDX-License-Identifier: Apache-2.0
#include "server/kv_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace kvspan::server {
namespace {

ServedFigures some_figures() {
  ServedFigures figures;
  figures.awake = true;
  figures.kv.recipe = "full";
  figures.kv.sequences = {{3, 10, 1000}};
  figures.kv.tokens = 10;
  figures.kv.bytes.total = 1000;
  figures.kv.bytes.coefficients = 900;
  figures.kv.f16_bytes = 4000;
  figures.kv.layer_bytes = {600, 400};
  CertificateFigures& certificates = figures.kv.certificates.emplace();
  certificates.samples = 4;
  certificates.layer = 1;
  certificates.tokens = 9;
  certificates.logits = {0.5, 3.0, 1.5};
  return figures;
}

TEST(KvReport, JsonHasTheFigures) {
  const auto read = nlohmann::json::parse(kv_json(some_figures(), {5000, 2000, 1, 0, 7}, std::nullopt));
  EXPECT_EQ(read["ratio"], 4.0);
  EXPECT_EQ(read["sequences"][0]["id"], 3);
  EXPECT_EQ(read["bytes"]["coefficients"], 900);
  EXPECT_EQ(read["budget"]["refused"], 7);
  EXPECT_EQ(read["layers"][1], nlohmann::json({{"layer", 1}, {"bytes", 400}}));
  EXPECT_EQ(read["certificates"]["logits"], nlohmann::json({{"last", 0.5}, {"mean", 0.75}, {"most", 1.5}}));
}

TEST(KvReport, WithoutCertificatesThereAreNone) {
  ServedFigures figures = some_figures();
  figures.kv.certificates.reset();
  EXPECT_TRUE(nlohmann::json::parse(kv_json(figures, {}, std::nullopt))["certificates"].is_null());
  EXPECT_EQ(kv_metrics(figures, {}, std::nullopt).find("certificate"), std::string::npos);
}

// The text format: a line is a comment of a known kind or a name with a number; each name is declared once, before it is
// used.
TEST(KvReport, MetricsAreInThePrometheusFormat) {
  std::istringstream text(kv_metrics(some_figures(), {5000, 2000, 1, 0, 7}, std::nullopt));
  std::set<std::string> declared;
  std::string line;
  int values = 0;
  while (std::getline(text, line)) {
    std::istringstream words(line);
    std::string first, second, third;
    words >> first >> second >> third;
    if (first == "#") {
      ASSERT_TRUE(second == "HELP" || second == "TYPE") << line;
      if (second == "TYPE") {
        EXPECT_TRUE(declared.insert(third).second) << line;
      }
      continue;
    }
    EXPECT_TRUE(declared.contains(first.substr(0, first.find('{')))) << line;
    std::size_t end = 0;
    std::stod(second, &end);
    EXPECT_EQ(end, second.size()) << line;
    ++values;
  }
  EXPECT_GT(values, 20);
}

}  // namespace
}  // namespace kvspan::server
