// SPDX-License-Identifier: Apache-2.0
#include "report/chart_style.h"

#include <fmt/format.h>

#include <array>

namespace kvspan {
namespace {

struct Palette {
  const char *background, *ink, *soft, *grid, *heat;
  std::array<const char*, kSeriesColours> series;
};
// Series after P. Tol's "bright" and "vibrant" schemes, which colour-blind readers can tell apart;
// ink stays readable on the full heat colour.
constexpr Palette kLight{"#ffffff",
                         "#1b1f24",
                         "#4d5761",
                         "#e1e6eb",
                         "#5b9bd5",
                         {"#1f6fb4", "#5c7a00", "#666666", "#cc3311", "#997700", "#aa3377",
                          "#0f8b8d", "#228833", "#c06000", "#3f4fb8", "#8a5a33", "#6a51a3"}};
constexpr Palette kDark{"#14181d",
                        "#e8ecf0",
                        "#aab4be",
                        "#2c343d",
                        "#2b62a3",
                        {"#66a9e8", "#a8c84a", "#bbbbbb", "#ff7657", "#d9b63c", "#e07ab5",
                         "#4fc7c9", "#5fc46f", "#f0a050", "#93a0f5", "#c79a72", "#b09ae0"}};

std::string variables(const Palette& palette) {
  std::string out =
      fmt::format("--kv-bg:{};--kv-ink:{};--kv-soft:{};--kv-grid:{};--kv-heat:{};",
                  palette.background, palette.ink, palette.soft, palette.grid, palette.heat);
  for (std::size_t i = 0; i < kSeriesColours; ++i) {
    out += fmt::format("--kv-{}:{};", i, palette.series[i]);
  }
  return out;
}

}  // namespace

std::string chart_style() {
  std::string out = fmt::format(":root{{color-scheme:light dark;{}}}\n", variables(kLight));
  out += fmt::format("@media screen and (prefers-color-scheme:dark){{:root{{{}}}}}\n",
                     variables(kDark));
  out +=
      ".kv-chart{font-family:system-ui,-apple-system,'Segoe "
      "UI',Roboto,Helvetica,Arial,sans-serif}\n"
      ".kv-bg{fill:var(--kv-bg)}\n"
      ".kv-t{fill:var(--kv-ink);font-weight:600}\n"
      ".kv-n{fill:var(--kv-ink)}\n"
      ".kv-s{fill:var(--kv-soft)}\n"
      ".kv-g{stroke:var(--kv-grid);stroke-width:1}\n"
      ".kv-a{stroke:var(--kv-soft);stroke-width:1}\n"
      ".kv-w{stroke:var(--kv-ink);stroke-width:1.5}\n"
      ".kv-h{fill:var(--kv-heat)}\n"
      ".kv-e{fill:none;stroke:var(--kv-grid)}\n"
      ".kv-dash{stroke-dasharray:5 3}\n";
  for (std::size_t i = 0; i < kSeriesColours; ++i) {
    out += fmt::format(
        ".kv-l{0}{{fill:none;stroke:var(--kv-{0});stroke-width:1.5}}\n"
        ".kv-f{0}{{fill:var(--kv-{0})}}\n",
        i);
  }
  return out;
}

}  // namespace kvspan
