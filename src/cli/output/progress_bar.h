// SPDX-License-Identifier: Apache-2.0
// Progress of work with a known length: a bar with the time left on a terminal, plain lines
// elsewhere. Work that ends within two seconds stays silent, except that a terminal shows the empty
// bar of a long task at once. --progress can ask for either, or for none. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

#include "cli/terminal/terminal.h"

namespace kvspan::cli {

// One line without line break, at most `width` columns:
//     reading [#########...........]  4,096 of 8,123 tokens, 21 s left
// Without an estimate (nothing done yet) the last part is missing.
std::string progress_line(std::string_view label, std::string_view unit, std::size_t done,
                          std::size_t total, double elapsed_seconds, int width);

class ProgressBar {
 public:
  using Clock = std::function<double()>;  // seconds since any moment

  ProgressBar(std::string label, std::string unit, std::size_t total);
  // For tests: any stream, any clock.
  ProgressBar(std::string label, std::string unit, std::size_t total, std::FILE* out,
              Terminal terminal, Clock clock);
  ~ProgressBar();  // finish()
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(std::size_t done);
  // Takes the bar off the terminal. Harmless to repeat.
  void finish();

 private:
  void draw(std::size_t done, double elapsed);

  std::string label_, unit_;
  std::size_t total_;
  std::FILE* out_;  // null: nothing is shown
  Terminal terminal_;
  Clock clock_;
  double started_;
  double last_line_ = 0.0;  // when the last plain line was written, since the start
  bool drawn_ = false;
};

}  // namespace kvspan::cli
