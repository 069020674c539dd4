// SPDX-License-Identifier: Apache-2.0
// ggml and libllama report through one process-wide callback. kvspan never prints from a library,
// so their lines are kept and become part of an Error's text instead.
#pragma once

#include <string>

namespace kvspan {

// While one lives, the first error line is kept (per thread), or the last warning where there is
// none; otherwise lines are dropped.
class GgmlLogCapture {
 public:
  GgmlLogCapture();
  ~GgmlLogCapture();
  GgmlLogCapture(const GgmlLogCapture&) = delete;
  GgmlLogCapture& operator=(const GgmlLogCapture&) = delete;

  // Without the trailing newline; empty when nothing was said.
  const std::string& reason() const noexcept { return line_; }

 private:
  std::string line_;
};

// Routes ggml's and libllama's lines here. Done on first use of either; harmless to repeat.
void silence_ggml();

// Hands every piece of text that they say to `echo` from now on; null ends it.
void echo_ggml(void (*echo)(const char* text));

}  // namespace kvspan
