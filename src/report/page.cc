// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <fmt/format.h>

#include "report/html.h"
#include "report/svg.h"

namespace kvspan {
namespace {

constexpr std::size_t kOpenRows = 12;  // a table without charts that is shown at once

std::string html_of(const Block& block, std::size_t most_rows) {
  std::string out = fmt::format("<h3>{}</h3>\n", escaped(block.table.title));
  if (!block.note.empty()) out += fmt::format("<p class=\"soft\">{}</p>\n", escaped(block.note));
  if (block.figures.empty() && block.table.rows.size() <= kOpenRows) {
    return out + html_of(block.table, most_rows);
  }
  out += "<div class=\"figures\">\n";
  for (const Figure& figure : block.figures) {
    out += "<figure>" + svg_of(figure, Setting::kPage) + "</figure>\n";
  }
  return out +
         fmt::format("</div>\n<details><summary>The numbers ({} rows)</summary>\n{}</details>\n",
                     block.table.rows.size(), html_of(block.table, most_rows));
}

std::string html_of(const Summary& summary) {
  std::string out = "<section id=\"summary\">\n<p class=\"facts\">";
  for (const auto& [name, fact] : summary.facts) {
    out += fmt::format("<span><b>{}</b> {}</span> ", escaped(name), escaped(fact));
  }
  out += "</p>\n<div class=\"first\"><div>\n";
  for (const auto& [question, answer] : summary.answers) {
    out += fmt::format("<p><b>{}</b> {}</p>\n", escaped(question), escaped(answer));
  }
  out += "</div>\n";
  if (summary.figure) {
    // It stands in its section, too: a huge one there only.
    const std::string svg = svg_of(*summary.figure, Setting::kPage);
    if (svg.size() < kMostPageBytes / 20) out += "<figure>" + svg + "</figure>\n";
  }
  return out + "</div>\n</section>\n";
}

// The first blocks of a section are open; what follows is one tap away.
constexpr std::size_t kOpenBlocks = 2;

std::string render(const Report& report, std::size_t most_rows) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>kvspan "
      "report</title>\n<style>\n" +
      page_style() + "</style>\n</head>\n<body>\n<main>\n<h1>kvspan report</h1>\n<nav>";
  for (const Section& section : report.sections) {
    out += fmt::format("<a href=\"#{}\">{}</a>", escaped(section.id), escaped(section.title));
  }
  out += "</nav>\n" + html_of(report.summary);
  for (const std::string& warning : report.warnings) {
    out += fmt::format("<p class=\"warning\">Left out: {}</p>\n", escaped(warning));
  }
  for (const Section& section : report.sections) {
    out += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n<p>{}</p>\n", escaped(section.id),
                       escaped(section.title), escaped(section.intro));
    for (std::size_t i = 0; i < section.blocks.size(); ++i) {
      const Block& block = section.blocks[i];
      const std::string html = html_of(block, most_rows);
      out += i < kOpenBlocks ? html
                             : fmt::format(
                                   "<details class=\"block\"><summary>{}</summary>\n{}"
                                   "</details>\n",
                                   escaped(block.table.title), html);
    }
    out += "</section>\n";
  }
  return out + "</main>\n</body>\n</html>\n";
}

}  // namespace

std::string page_of(const Report& report) {
  std::string page;
  for (const std::size_t most_rows : {400, 100, 25, 5}) {
    page = render(report, most_rows);
    if (page.size() < kMostPageBytes) break;
  }
  return page;
}

}  // namespace kvspan
