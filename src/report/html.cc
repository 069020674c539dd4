// SPDX-License-Identifier: Apache-2.0
#include "report/html.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/chart_style.h"
#include "report/svg.h"

namespace kvspan {
namespace {

constexpr std::size_t kMostCards = 12;

}  // namespace

std::string page_style() {
  return chart_style() +
         "*{box-sizing:border-box}\n"
         "body{margin:0;background:var(--kv-bg);color:var(--kv-ink);"
         "font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif}\n"
         "main{max-width:1120px;margin:0 auto;padding:12px}\n"
         "h1{font-size:1.6rem;margin:.4em 0}\nh2{font-size:1.3rem;margin:1.6em 0 .3em;"
         "border-bottom:1px solid var(--kv-grid)}\nh3{font-size:1.05rem;margin:1.4em 0 .2em;"
         "overflow-wrap:anywhere}\n"
         "p{margin:.4em 0;max-width:75ch;overflow-wrap:anywhere}\n.soft{color:var(--kv-soft)}\n"
         "a{color:var(--kv-0)}\nnav a{display:inline-block;margin:.2em .9em .2em 0}\n"
         ".figures{display:grid;gap:12px;"
         "grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr))}\n"
         "figure{margin:0;border:1px solid var(--kv-grid);border-radius:6px;padding:2px}\n"
         "figure svg{display:block;width:100%;height:auto}\n"
         "details{margin:.6em "
         "0}\nsummary{cursor:pointer;color:var(--kv-0);overflow-wrap:anywhere}\n"
         ".facts span{display:inline-block;margin-right:1.2em}\n"
         ".first{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px)"
         ","
         "1fr));align-items:start}\n"
         ".block[open]>summary{display:none}\n"
         ".wide{overflow-x:auto}\n"
         "table{border-collapse:collapse;font-size:.82rem}\n"
         "th,td{padding:3px 8px;border-bottom:1px solid var(--kv-grid);text-align:left;"
         "vertical-align:top}\n"
         "th{font-weight:600}\ntd.n,th.n{text-align:right;font-variant-numeric:tabular-nums;"
         "white-space:nowrap}\n"
         "td.some{min-width:9em}\ntd.long{min-width:12em;max-width:40em;overflow-wrap:anywhere}\n"
         "td.code{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:.95em;"
         "min-width:16em;overflow-wrap:anywhere}\n"
         ".warning{border-left:4px solid var(--kv-3);padding:.2em .8em}\n"
         "@media screen and (max-width:760px){.cards thead{display:none}"
         ".cards tr,.cards td{display:block}.cards tr{padding:.5em 0;"
         "border-bottom:1px solid var(--kv-grid)}.cards td{border:0;padding:1px 0;min-width:0;"
         "text-align:left;white-space:normal;overflow-wrap:anywhere}"
         ".cards td:empty{display:none}"
         ".cards td::before{content:attr(data-title) \": \";color:var(--kv-soft)}}\n"
         "@media print{figure,tr{break-inside:avoid}h2,h3,p.soft,summary{break-after:avoid}"
         ".wide{overflow:visible}details::details-content{content-visibility:visible;height:auto}"
         "table{font-size:6pt;width:100%}th,td{padding:1px 2px}th,th.n{white-space:normal}"
         "td.some,td.long,td.code{min-width:11em;overflow-wrap:anywhere}}\n";
}

std::string html_of(const DataTable& table, std::size_t most_rows) {
  const auto is_number = [&](std::size_t column) {
    return std::any_of(table.rows.begin(), table.rows.end(), [&](const auto& row) {
      return std::holds_alternative<double>(row[column]);
    });
  };
  // Few rows of mostly text: a phone shows each row as a card, cells below each other.
  std::size_t numbers = 0;
  for (std::size_t j = 0; j < table.columns.size(); ++j) numbers += is_number(j);
  const bool cards = table.rows.size() <= kMostCards && 3 * numbers <= table.columns.size();
  std::string out = fmt::format("<div class=\"wide\"><table id=\"{}\"{}>\n<thead><tr>",
                                escaped(table.id), cards ? " class=\"cards\"" : "");
  for (std::size_t j = 0; j < table.columns.size(); ++j) {
    const Column& column = table.columns[j];
    out += fmt::format("<th{}>{}{}</th>", is_number(j) ? " class=\"n\"" : "", escaped(column.title),
                       column.unit.empty() ? "" : " (" + escaped(column.unit) + ")");
  }
  out += "</tr></thead>\n<tbody>\n";
  const std::size_t rows = std::min(most_rows, table.rows.size());
  for (std::size_t i = 0; i < rows; ++i) {
    out += "<tr>";
    for (std::size_t j = 0; j < table.columns.size(); ++j) {
      const Cell& cell = table.rows[i][j];
      const std::string title = cards ? attribute("data-title", table.columns[j].title) : "";
      if (const auto* number = std::get_if<double>(&cell)) {
        const std::string people = shown(*number), whole = exact(*number);
        out += fmt::format("<td class=\"n\"{}{}>{}</td>",
                           people == whole ? "" : attribute("data-value", whole), title, people);
      } else if (const auto* text = std::get_if<std::string>(&cell)) {
        const char* css = table.columns[j].title == "command line" ? " class=\"code\""
                          : text->size() > 60                      ? " class=\"long\""
                          : text->size() > 20                      ? " class=\"some\""
                                                                   : "";
        out += fmt::format("<td{}{}>{}</td>", css, title, escaped(*text));
      } else {
        out += fmt::format("<td{}></td>", title);
      }
    }
    out += "</tr>\n";
  }
  out += "</tbody></table></div>\n";
  if (rows < table.rows.size()) {
    out += fmt::format("<p class=\"soft\">{} more rows are in report.csv and report.json.</p>\n",
                       table.rows.size() - rows);
  }
  return out;
}

}  // namespace kvspan
