// SPDX-License-Identifier: Apache-2.0
// A report from the documents of a folder.
#pragma once

#include <span>

#include "report/documents.h"

namespace kvspan {

// Files in the order that their sections show them. A file that is not kvspan's, or not built as
// its command builds it, becomes a warning; fails where nothing is left.
Result<Report> build_report(std::span<const NamedText> files);

}  // namespace kvspan
