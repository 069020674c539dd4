// SPDX-License-Identifier: Apache-2.0
// What a report says first: of which model, where and when, one sentence to each question, and the
// chart of quality against bytes.
#pragma once

#include <span>

#include "report/documents.h"

namespace kvspan {

// The chart is one that the report's sections have: that of eval ppl, or a study's.
Summary summary_of(std::span<const NamedDocument> documents, const std::vector<Section>& sections);

}  // namespace kvspan
