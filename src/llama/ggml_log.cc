// SPDX-License-Identifier: Apache-2.0
#include "llama/ggml_log.h"

#include <ggml.h>
#include <llama.h>
#include <log.h>

#include <atomic>
#include <mutex>

namespace kvspan {
namespace {

std::atomic<void (*)(const char*)> echoed{nullptr};
thread_local std::string* captured_line = nullptr;
thread_local bool is_error = false;  // the line

void keep_line(ggml_log_level level, const char* text, void*) {
  if (const auto echo = echoed.load(std::memory_order_relaxed); echo != nullptr) echo(text);
  // The first error tells why; those after it tell who could not go on because of it.
  if (captured_line == nullptr || is_error || level < GGML_LOG_LEVEL_WARN) return;
  std::string line(text);
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  if (line.empty()) return;
  is_error = level == GGML_LOG_LEVEL_ERROR;
  *captured_line = std::move(line);
}

}  // namespace

void silence_ggml() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(keep_line, nullptr);
    ggml_log_set(keep_line, nullptr);
    common_log_set_verbosity_thold(-1);  // it has no callback; below 0 are no lines
  });
}

void echo_ggml(void (*echo)(const char* text)) {
  echoed.store(echo, std::memory_order_relaxed);
}

GgmlLogCapture::GgmlLogCapture() {
  silence_ggml();
  captured_line = &line_;
  is_error = false;
}

GgmlLogCapture::~GgmlLogCapture() {
  captured_line = nullptr;
}

}  // namespace kvspan
