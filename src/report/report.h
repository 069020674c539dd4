// SPDX-License-Identifier: Apache-2.0
// A report from the documents of a folder.
#pragma once

#include <span>

#include "report/documents.h"

namespace kvspan {

// Files in the order that their sections show them. A file that is not kvspan's, or not built as
// its command builds it, becomes a warning; fails where nothing is left.
Result<Report> build_report(std::span<const NamedText> files);

// Divergence against bytes as a file of its own, from documents of eval ppl on one model and text
// (joined_quality.cc); where files are of several, from those of which there are most. Fails where
// that leaves a choice.
struct QualityPicture {
  std::string svg;
  std::vector<std::string> drawn, apart;  // names of files
};
Result<QualityPicture> quality_picture(std::span<const NamedText> files);

}  // namespace kvspan
