// SPDX-License-Identifier: Apache-2.0
#include "cli/output/study_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cli/output/format.h"
#include "cli/output/table.h"

namespace kvspan::cli {
namespace {

using enum Table::Align;

std::string verdict_text(const StudyVerdict& verdict) {
  return fmt::format("{}  {:<9}  {}\n    {}.\n    What would change it: {}.\n", verdict.id,
                     name_of(verdict.outcome), verdict.claim, verdict.because,
                     verdict.would_change);
}

std::string interval_text(const Interval& interval, int digits, std::string_view sign) {
  if (std::isnan(interval.low)) return "-";
  const auto text = [&](double v) {
    return sign.empty() ? fmt::format("{:.{}f}", v, digits) : fmt::format("{:+.{}f}", v, digits);
  };
  return text(interval.low) + " .. " + text(interval.high);
}

std::string group_table(const StudyData& data, std::string_view group,
                        const VerdictOptions& options) {
  Table table({{"varied"},
               {"recipe"},
               {"bits", kRight},
               {"ratio", kRight},
               {"dppl %", kRight},
               {"95 %", kRight},
               {"KL", kRight},
               {"95 %", kRight},
               {"same argmax", kRight},
               {""}});
  for (const StudyRow& row : data.rows) {
    if (row.group != group) continue;
    const PerplexityFigures& f = row.measured.figures;
    const bool measured = f.positions > 0;
    const RowParts parts = parts_of(row.measured, options.context);
    const bool idle = row.family != "full" && row.measured.nothing_compressed();
    const auto cell = [&](std::string text) { return measured ? std::move(text) : "-"; };
    const std::string varied = row.level ? fmt::format("{:g} bits", *row.level) : row.label;
    table.add_row({varied, row.measured.recipe, cell(fmt::format("{:.2f}", row.bits())),
                   format_ratio(row.measured.kv_bytes_full, row.measured.kv_bytes),
                   cell(fmt::format("{:+.2f}", f.dppl_pct)),
                   cell(interval_text(dppl_interval(parts, options.bootstrap), 2, "+")),
                   cell(fmt::format("{:.5f}", f.kl)),
                   cell(interval_text(kl_interval(parts, options.bootstrap), 5, "")),
                   cell(fmt::format("{:.2f} %", 100.0 * f.top1)),
                   row.measured.failed ? "failed: " + *row.measured.failed
                   : idle              ? "nothing compressed"
                                       : ""});
  }
  return table.text();
}

std::string position_table(const StudyData& data, std::int32_t context) {
  Table table({{"recipe"}, {"positions", kRight}, {"dppl %", kRight}, {"KL", kRight}});
  for (const StudyRow& row : data.rows) {
    const auto parts = static_cast<std::int32_t>(row.measured.by_position.size());
    if (row.group != "length" || row.family == "full") continue;
    for (std::int32_t b = 0; b < parts; ++b) {
      const PerplexityFigures& f = row.measured.by_position[static_cast<std::size_t>(b)];
      if (f.positions == 0) continue;
      table.add_row({row.measured.recipe,
                     fmt::format("{}-{}", context * b / parts, context * (b + 1) / parts - 1),
                     fmt::format("{:+.2f}", f.dppl_pct), fmt::format("{:.5f}", f.kl)});
    }
  }
  return table.text();
}

std::string number_table(const std::vector<StudyVerdict>& verdicts) {
  Table table({{""},
               {"number"},
               {"recipe"},
               {"value", kRight},
               {"interval", kRight},
               {"at", kRight},
               {"threshold", kRight},
               {"unit"},
               {"n", kRight},
               {"decides"}});
  for (const StudyVerdict& verdict : verdicts) {
    for (const StudyNumber& number : verdict.numbers) {
      table.add_row({std::string(verdict.id), number.name, number.recipe,
                     fmt::format("{:.3f}", number.value), interval_text(number.interval, 3, ""),
                     fmt::format("{:.3g} %", 100.0 * number.confidence),
                     number.threshold ? fmt::format("{:g}", *number.threshold) : "-",
                     std::string(number.unit), fmt::format("{}", number.n),
                     number.decides ? "yes" : ""});
    }
  }
  return table.text();
}

std::string length_table(const std::vector<StudyBreakEven>& lengths) {
  Table table({{"recipe"}, {"fewer than"}, {"by"}, {"from tokens", kRight}, {""}});
  std::vector<std::string> seen;
  for (const StudyBreakEven& length : lengths) {
    const std::string key = fmt::format("{} {} {}", length.recipe, length.against, length.by);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
    seen.push_back(key);
    table.add_row(
        {length.recipe, length.against, std::string(length.by),
         length.tokens ? format_count(static_cast<std::uint64_t>(*length.tokens + 0.5)) : "never",
         length.extrapolated ? "beyond what was measured" : ""});
  }
  return table.text();
}

}  // namespace

std::string study_text(const StudyData& data, const std::vector<StudyVerdict>& verdicts,
                       const std::vector<StudyBreakEven>& lengths, const VerdictOptions& options) {
  std::string out;
  for (const StudyVerdict& verdict : verdicts) out += verdict_text(verdict);
  out += "\nThe numbers behind the verdicts\n" + number_table(verdicts);
  for (const StudyGroup& group : study_groups()) {
    const bool any = std::any_of(data.rows.begin(), data.rows.end(),
                                 [&](const StudyRow& row) { return row.group == group.name; });
    if (!any) continue;
    out += fmt::format("\n{}{}{}\n{}", group.title, group.note.empty() ? "" : ": ", group.note,
                       group_table(data, group.name, options));
    if (group.name == "length") out += "\n" + position_table(data, options.context);
  }
  for (const StudyRow& row : data.rows) {
    if (row.group != "bounds" || !row.measured.failed) continue;
    out += fmt::format("\nBounds of {}: failed: {}\n", row.measured.recipe, *row.measured.failed);
  }
  if (!lengths.empty()) out += "\nLengths from which a recipe pays\n" + length_table(lengths);
  return out;
}

std::string plan_text(const std::vector<StudyUnit>& plan, const StudyOptions& options) {
  std::string out;
  std::size_t recipes = 0, tokens = fitting_tokens(options);
  std::set<std::string> read;
  for (const StudyUnit& unit : plan) {
    const std::size_t of_unit = tokens_of(unit, options, read);
    out += fmt::format("{}: {} recipes, {} tokens\n", unit.name, unit.recipes.size(),
                       format_count(of_unit));
    for (const PlannedRecipe& planned : unit.recipes) {
      out += planned.level ? fmt::format("  {} at {:g} bits\n", planned.family, *planned.level)
                           : fmt::format("  {}\n", planned.recipe);
    }
    recipes += unit.recipes.size();
    tokens += of_unit;
  }
  return out + fmt::format("{} recipes on {} windows of {} tokens: {} tokens to read\n", recipes,
                           options.windows, options.context, format_count(tokens));
}

}  // namespace kvspan::cli
