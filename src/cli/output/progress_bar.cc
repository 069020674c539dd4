// SPDX-License-Identifier: Apache-2.0
#include "cli/output/progress_bar.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cli/output/format.h"
#include "cli/output/voice.h"

namespace kvspan::cli {
namespace {

constexpr double kSilentSeconds = 2.0;
constexpr double kLineSeconds = 5.0;    // between plain lines
constexpr std::size_t kLongTask = 256;  // shown from the start on a terminal
constexpr std::size_t kMaxBarColumns = 40;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string numbers(std::string_view unit, std::size_t done, std::size_t total, double elapsed) {
  std::string text = fmt::format("{} of {} {}", format_count(done), format_count(total), unit);
  if (done > 0 && elapsed > 0.0) {
    const double left = elapsed * static_cast<double>(total - done) / static_cast<double>(done);
    text += fmt::format(", {} left", format_duration(left));
  }
  return text;
}

// Standard error as --progress wants it taken.
Terminal shown_terminal() {
  Terminal terminal = describe_terminal(2);
  if (progress_style() == ProgressStyle::kBar) terminal.is_terminal = true;
  if (progress_style() == ProgressStyle::kPlain) terminal.is_terminal = false;
  return terminal;
}

}  // namespace

std::string progress_line(std::string_view label, std::string_view unit, std::size_t done,
                          std::size_t total, double elapsed_seconds, int width) {
  total = std::max<std::size_t>(total, 1);
  done = std::min(done, total);
  const std::string text = numbers(unit, done, total, elapsed_seconds);
  const std::size_t taken = display_width(label) + display_width(text) + 4;  // " [" and "] "
  const auto columns = static_cast<std::size_t>(std::max(width, 0));
  if (columns < taken + 10) return fit_width(fmt::format("{}: {}", label, text), columns);
  const std::size_t bar = std::min(columns - taken, kMaxBarColumns);
  const std::size_t filled = bar * done / total;
  return fmt::format("{} [{}{}] {}", label, std::string(filled, '#'),
                     std::string(bar - filled, '.'), text);
}

ProgressBar::ProgressBar(std::string label, std::string unit, std::size_t total)
    : ProgressBar(std::move(label), std::move(unit), total,
                  progress_style() == ProgressStyle::kNone ? nullptr : stderr, shown_terminal(),
                  steady_seconds) {}

ProgressBar::ProgressBar(std::string label, std::string unit, std::size_t total, std::FILE* out,
                         Terminal terminal, Clock clock)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(std::max<std::size_t>(total, 1)),
      out_(out),
      terminal_(terminal),
      clock_(std::move(clock)),
      started_(clock_()) {
  if (out_ != nullptr && terminal_.is_terminal && total_ >= kLongTask) draw(0, 0.0);
}

ProgressBar::~ProgressBar() {
  finish();
}

void ProgressBar::update(std::size_t done) {
  if (out_ == nullptr) return;
  done = std::min(done, total_);
  const double elapsed = clock_() - started_;
  if (terminal_.is_terminal) {
    const double whole =
        done == 0 ? elapsed : elapsed * static_cast<double>(total_) / static_cast<double>(done);
    if (drawn_ || whole > kSilentSeconds) draw(done, elapsed);
  } else if (done < total_ && elapsed > kSilentSeconds &&
             (last_line_ == 0.0 || elapsed - last_line_ >= kLineSeconds)) {
    fmt::print(out_, "{}: {}\n", label_, numbers(unit_, done, total_, elapsed));
    std::fflush(out_);
    last_line_ = elapsed;
  }
}

void ProgressBar::draw(std::size_t done, double elapsed) {
  // The last column stays free: writing there makes some terminals wrap.
  const std::string line = progress_line(label_, unit_, done, total_, elapsed, terminal_.width - 1);
  fmt::print(out_, "\r{}\033[K", line);
  std::fflush(out_);
  drawn_ = true;
}

void ProgressBar::finish() {
  if (!drawn_) return;
  std::fputs("\r\033[K", out_);
  std::fflush(out_);
  drawn_ = false;
}

}  // namespace kvspan::cli
