// SPDX-License-Identifier: Apache-2.0
// The thirteen tasks of RULER by name, with the settings of its benchmark (templates: Apache-2.0).
#pragma once

#include <span>
#include <string_view>

#include "eval/retrieval/retrieval_generators.h"

namespace kvspan {

struct RulerTaskInfo {
  std::string_view name;
  std::string_view summary;
};
std::span<const RulerTaskInfo> all_ruler_tasks() noexcept;

// For prompts of `length` tokens. Fails on an unknown name, with the nearest, and where `data` has
// no questions for qa_1 or qa_2.
Result<RetrievalTask> ruler_task(std::string_view name, std::size_t length,
                                 const RetrievalData& data);

}  // namespace kvspan
