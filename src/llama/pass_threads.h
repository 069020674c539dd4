// SPDX-License-Identifier: Apache-2.0
// The threads of a context's passes: all that the context was made with, or one while other programs
// need the processors (llama/thread_choice.h). One thread calls.
#pragma once

#include <llama.h>

#include <algorithm>

#include "llama/thread_choice.h"

namespace kvspan {

class PassThreads {
 public:
  // `loading`: what loading the model used. Without `adapts` all threads are always used.
  PassThreads(llama_context* context, const ProcessTimes& loading, bool adapts,
              ProcessClock clock = process_times)
      : context_(context),
        most_(llama_n_threads(context)),
        most_in_batches_(llama_n_threads_batch(context)),
        adapts_(adapts),
        clock_(clock),
        choice_(std::max(most_, most_in_batches_), loading) {}

  // Before a pass.
  void begin() {
    if (!adapts_) return;
    const bool alone = choice_.threads() == 1;
    llama_set_n_threads(context_, alone ? 1 : most_, alone ? 1 : most_in_batches_);
    begun_ = clock_();
  }
  // After one that went well.
  void end() {
    if (!adapts_) return;
    const ProcessTimes now = clock_();
    choice_.saw(now - begun_, now.wall_s);
  }

 private:
  llama_context* context_;
  std::int32_t most_, most_in_batches_;
  bool adapts_;
  ProcessClock clock_;
  ThreadChoice choice_;
  ProcessTimes begun_;
};

}  // namespace kvspan
