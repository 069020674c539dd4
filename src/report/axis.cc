// SPDX-License-Identifier: Apache-2.0
#include "report/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvspan {
namespace {

// The smallest of 1, 2, 5 times a power of ten that is at least `least`.
double round_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1.0 - 1e-9)) return factor * power;
  }
  return 10.0 * power;
}

}  // namespace

std::string axis_title(const Axis& axis) {
  return fmt::format("{} ({}){}", axis.label, axis.unit, axis.log ? ", log scale" : "");
}

Scale::Scale(const Axis& axis, const std::vector<double>& values) : log_(axis.log) {
  std::vector<double> all;
  for (const double value : values) {
    if (shows(value)) all.push_back(value);
  }
  for (const double value : axis.include) {
    if (shows(value)) all.push_back(value);
  }
  if (all.empty()) all = log_ ? std::vector<double>{0.1, 1.0} : std::vector<double>{0.0, 1.0};
  const auto [least, greatest] = std::minmax_element(all.begin(), all.end());
  low_ = log_ ? std::log10(*least) : *least;
  high_ = log_ ? std::log10(*greatest) : *greatest;
  if (high_ - low_ <= 1e-12 * std::max(std::abs(high_), 1e-300)) {
    const double half = log_ ? 0.3 : (low_ == 0.0 ? 0.5 : 0.1 * std::abs(low_));
    low_ -= half;
    high_ += half;
  } else {
    const double margin = 0.04 * (high_ - low_);
    // Room around the data, but an axis that starts at 0 starts at 0.
    if (log_ || low_ != 0.0) low_ -= margin;
    if (log_ || high_ != 0.0) high_ += margin;
  }
}

bool Scale::shows(double value) const noexcept {
  return std::isfinite(value) && (!log_ || value > 0.0);
}

double Scale::at(double value) const noexcept {
  return ((log_ ? std::log10(value) : value) - low_) / (high_ - low_);
}

std::vector<double> Scale::ticks(std::size_t most) const {
  std::vector<double> out;
  most = std::max<std::size_t>(most, 2);
  const auto within = [&](double place) { return place >= low_ - 1e-9 && place <= high_ + 1e-9; };
  if (log_) {
    const int first = static_cast<int>(std::floor(low_)), last = static_cast<int>(std::ceil(high_));
    // Finer numbers only where decades alone would be too few.
    for (const std::vector<double>& factors :
         {std::vector<double>{1}, {1, 3}, {1, 2, 5}, {1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9}}) {
      out.clear();
      for (int decade = first; decade <= last; ++decade) {
        for (const double factor : factors) {
          if (within(std::log10(factor) + decade)) out.push_back(factor * std::pow(10.0, decade));
        }
      }
      if (out.size() >= 3) break;
    }
  }
  if (out.size() < 2) {
    // Linear axes, and log axes of so narrow a range that no round factor lies in it.
    const double low = log_ ? std::pow(10.0, low_) : low_;
    const double high = log_ ? std::pow(10.0, high_) : high_;
    const double step = round_step((high - low) / static_cast<double>(most));
    out.clear();
    for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1.0) {
      out.push_back(k == 0.0 ? 0.0 : k * step);
    }
  }
  while (out.size() > most) {  // every second, the first kept
    std::vector<double> half;
    for (std::size_t i = 0; i < out.size(); i += 2) half.push_back(out[i]);
    out = std::move(half);
  }
  return out;
}

std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size >= 1e6) return fmt::format("{:.3g}", value);
  if (size >= 1.0) return fmt::format("{:.6g}", value);
  return fmt::format("{:.3g}", value);
}

}  // namespace kvspan
