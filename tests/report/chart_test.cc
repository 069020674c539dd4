// SPDX-License-Identifier: Apache-2.0
// Every chart: titles and units of its axes, a legend, the numbers given, text that stays inside
// and apart.
#include "report/chart.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "report/data_table.h"
#include "report/series_style.h"
#include "report/svg.h"
#include "tests/report/svg_reading.h"

namespace kvspan::testing {
namespace {

void expect_readable(const std::string& svg) {
  const auto texts = texts_of(svg);
  ASSERT_GE(texts.size(), 3u);
  const double height = height_of(svg);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const TextBox& a = texts[i];
    EXPECT_GE(a.left, -0.5) << a.text;
    EXPECT_LE(a.right, kChartWidth + 0.5) << a.text;
    EXPECT_GE(a.top, -0.5) << a.text;
    EXPECT_LE(a.bottom, height + 0.5) << a.text;
    for (std::size_t j = 0; j < i; ++j) {
      const TextBox& b = texts[j];
      const bool apart =
          a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
      EXPECT_TRUE(apart) << "'" << a.text << "' over '" << b.text << "'";
    }
  }
}
void expect_texts(const std::string& svg, const std::vector<std::string>& wanted) {
  std::string all;
  for (const TextBox& box : texts_of(svg)) all += box.text + " ";
  for (const std::string& text : wanted) EXPECT_NE(all.find(text), std::string::npos) << text;
}

LineChart line_chart() {
  LineChart chart{"Quality <against> bytes & more",
                  {"KV cache", "MiB", true},
                  {"KL to full", "nats", true},
                  {}};
  const char* names[] = {"full",
                         "bands",
                         "quant",
                         "static",
                         "a name that is much too long to be "
                         "shown whole in the legend of a chart of this width",
                         "<b>",
                         "g",
                         "h",
                         "i"};
  double shift = 1.0;
  for (const char* name : names) {
    chart.series.push_back({name, {{1.5 * shift, 0.01 / shift}, {20.0 * shift, 0.0012 / shift}}});
    shift *= 1.3;
  }
  return chart;
}

TEST(LineChart, HasUnitsLegendAndEveryNumber) {
  const LineChart chart = line_chart();
  const std::string svg = svg_of(chart, Setting::kPage);
  expect_readable(svg);
  expect_texts(svg, {"KV cache (MiB), log scale", "KL to full (nats), log scale", "bands", "<b>"});
  std::vector<std::string> xs, ys;
  for (const Series& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      xs.push_back(exact(x));
      ys.push_back(exact(y));
    }
  }
  EXPECT_EQ(attributes_of(svg, "data-x"), xs);
  EXPECT_EQ(attributes_of(svg, "data-y"), ys);
}

TEST(SeriesStyle, AMethodHasOneColourWhereverItStands) {
  const auto colour_of = [](const std::string& name) { return styles_of({name})[0].colour; };
  EXPECT_EQ(colour_of("bands"), colour_of("bands:bits=2,anchor=64"));
  EXPECT_EQ(colour_of("bands"), colour_of("kvspan bands:bits=1"));
  EXPECT_EQ(colour_of("bands"), colour_of("bands [2]"));
  std::set<std::size_t> colours;
  const std::vector<std::string> together{"bands",  "quant",    "turbo", "oscar", "kvtc",
                                          "static", "spectral", "oja",   "fd",    "full"};
  for (const std::string& name : together) colours.insert(colour_of(name));
  EXPECT_EQ(colours.size(), together.size());
  // Recipes of one method in one chart differ by stroke and marker.
  const auto styles = styles_of({"bands:bits=1", "quant", "bands:bits=2"});
  EXPECT_EQ(styles[0].colour, styles[2].colour);
  EXPECT_NE(styles[0].line_class(), styles[2].line_class());
  EXPECT_NE(styles[0].shape(), styles[2].shape());
}

TEST(LineChart, LabelsOfPointsTouchNothing) {
  LineChart chart = line_chart();
  chart.point_label = [](double x) { return shown(x) + "x"; };
  const std::string svg = svg_of(chart, Setting::kPage);
  expect_readable(svg);
  const auto texts = texts_of(svg);
  EXPECT_GE(std::count_if(texts.begin(), texts.end(),
                          [](const TextBox& box) { return box.text.ends_with('x'); }),
            5);
}

TEST(Figure, WithoutAnyPlaceForItsNumbersShowsNothing) {
  LineChart chart = line_chart();
  EXPECT_TRUE(shows_something({"lines", chart}));
  for (Series& series : chart.series) {
    for (auto& [x, y] : series.points) y = 0.0;  // nowhere on a log axis
  }
  EXPECT_FALSE(shows_something({"lines", chart}));
  EXPECT_FALSE(
      shows_something({"bars", BarChart{"t", {"g", ""}, {"y", ""}, {"a"}, {{"s", {{}}}}}}));
  EXPECT_TRUE(
      shows_something({"bars", BarChart{"t", {"g", ""}, {"y", ""}, {"a"}, {{"s", {1.0}}}}}));
}

TEST(LineChart, EscapesText) {
  const std::string svg = svg_of(line_chart(), Setting::kPage);
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
  EXPECT_NE(svg.find("&lt;b&gt;"), std::string::npos);
  EXPECT_NE(svg.find("aria-label=\"Quality &lt;against&gt; bytes &amp; more\""), std::string::npos);
}

TEST(LineChart, CountsWhatALogAxisCannotShow) {
  LineChart chart = line_chart();
  chart.series[0].points.push_back({3.0, 0.0});
  expect_texts(svg_of(chart, Setting::kPage), {"At 0, not on these axes: full (1)"});
  chart.y.log = false;
  for (const TextBox& box : texts_of(svg_of(chart, Setting::kPage))) {
    EXPECT_EQ(box.text.find("not on these axes"), std::string::npos);
  }
  // A series without any place has no key in the legend.
  chart.y.log = true;
  chart.series.push_back({"nothing", {{16.0, 0.0}}});
  const std::string svg = svg_of(chart, Setting::kPage);
  expect_readable(svg);
  for (const TextBox& box : texts_of(svg)) EXPECT_NE(box.text, "nothing");
  expect_texts(svg, {"At 0, not on these axes: full (1), nothing"});
}

TEST(LineChart, NotesStandBelowTheLegend) {
  LineChart chart = line_chart();
  chart.notes = {
      "[1] ppl_methods_smollm2_x86_avx512.json: weights file, Intel(R) Xeon(R) Processor, 4 "
      "windows",
      "[2] b.json: weights f16"};
  const std::string svg = svg_of(chart, Setting::kPage);
  expect_readable(svg);
  expect_texts(svg, {"Xeon(R) Processor, 4 windows", "[2] b.json: weights f16"});
}

TEST(BarChart, IntervalsAreLinesWithinTheAxis) {
  BarChart chart{"Scores", {"task", "name"}, {"score", "share"}, {"a", "b"}, {}};
  chart.series.push_back({"full", {0.5, 0.25}, {std::pair{0.4, 0.9}, std::nullopt}});
  const std::string svg = svg_of(chart, Setting::kPage);
  expect_readable(svg);
  std::size_t lines = 0;
  for (std::size_t at = 0; (at = svg.find("kv-w", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, 1u);
  expect_texts(svg, {"0.8"});  // the axis reaches to the interval's end
}

TEST(LineChart, ExtremeAndEmptyRangesStayReadable) {
  for (const bool log : {false, true}) {
    for (const auto& points : std::vector<std::vector<std::pair<double, double>>>{
             {},
             {{1, 1}},
             {{16, 1e-7}, {8100, 1e7}},
             {{0, -1234567}, {1e9, 7654321}},
             {{1, 0.00012345}, {1.0001, 0.00012346}}}) {
      const LineChart chart{"t", {"x", "u", log}, {"y", "u", log}, {{"s", points}}};
      expect_readable(svg_of(chart, Setting::kPage));
    }
  }
}

TEST(LineChart, AFileCarriesItsStyleForLightAndDark) {
  const std::string file = svg_of(line_chart(), Setting::kFile);
  EXPECT_NE(file.find("xmlns=\"http://www.w3.org/2000/svg\""), std::string::npos);
  EXPECT_NE(file.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_EQ(svg_of(line_chart(), Setting::kPage).find("<style>"), std::string::npos);
}

TEST(HeatMap, HasScaleNamesAndEveryNumber) {
  for (const std::size_t columns : {1u, 3u, 8u, 32u}) {
    HeatMap map{"Rank for 95 % of the energy: key_post",
                {"layer", "index"},
                {"KV head", "index"},
                {"rank", "directions"},
                {},
                {},
                {}};
    std::vector<std::string> numbers;
    for (std::size_t i = 0; i < 30; ++i) {
      map.row_names.push_back(std::to_string(i));
      map.cells.emplace_back();
      for (std::size_t j = 0; j < columns; ++j) {
        map.cells.back().push_back(static_cast<double>(i * j % 64) + 0.125);
        numbers.push_back(exact(*map.cells.back().back()));
      }
    }
    for (std::size_t j = 0; j < columns; ++j) map.column_names.push_back(std::to_string(j));
    map.cells[3][0].reset();
    numbers.erase(numbers.begin() + static_cast<std::ptrdiff_t>(3 * columns));
    const std::string svg = svg_of(map, Setting::kPage);
    expect_readable(svg);
    expect_texts(svg, {"layer (index)", "KV head (index)", "colour: rank (directions)", "0.125"});
    EXPECT_EQ(attributes_of(svg, "data-value"), numbers);
  }
}

TEST(HeatMap, LongNamesAndOneValueStayReadable) {
  HeatMap map{"Energy retained between texts",
              {"directions of", "text"},
              {"energy of", "text"},
              {"retained", "of the best"},
              {},
              {},
              {}};
  for (int i = 0; i < 4; ++i) {
    map.row_names.push_back("a long file name of a text number " + std::to_string(i) + ".txt");
    map.column_names.push_back(map.row_names.back());
    map.cells.emplace_back(4, 1.0);
  }
  expect_readable(svg_of(map, Setting::kPage));
  expect_readable(
      svg_of(HeatMap{"t", {"a", "b"}, {"c", "d"}, {"e", "f"}, {}, {}, {}}, Setting::kPage));
}

TEST(BarChart, HasUnitsLegendAndEveryNumber) {
  for (const std::size_t groups : {1u, 3u, 13u}) {
    BarChart chart{"Scores: acc", {"task", "name"}, {"acc", "share"}, {}, {}};
    for (std::size_t g = 0; g < groups; ++g) {
      chart.group_names.push_back("niah_multikey_" + std::to_string(g));
    }
    std::vector<std::string> numbers;
    for (const char* name : {"full", "bands:bits=2", "streaming:size=1024,sink=32"}) {
      BarChart::Bars bars{name, {}};
      for (std::size_t g = 0; g < groups; ++g) {
        bars.values.push_back(0.1 * static_cast<double>(g) - 0.2);
        numbers.push_back(exact(*bars.values.back()));
      }
      chart.series.push_back(bars);
    }
    const std::string svg = svg_of(chart, Setting::kPage);
    expect_readable(svg);
    expect_texts(svg, {"task (name)", "acc (share)", "full", "bands:bits=2", "niah_multikey_0"});
    EXPECT_EQ(attributes_of(svg, "data-value"), numbers);
  }
}

}  // namespace
}  // namespace kvspan::testing
