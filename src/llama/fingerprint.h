// SPDX-License-Identifier: Apache-2.0
// What tells a model file from every other: files that are byte for byte equal have the same
// fingerprint wherever they lie; another quantization, fine-tune or configuration has another.
#pragma once

#include <string>

#include "llama/gguf_file.h"

namespace kvspan {

// The first 32 hexadecimal digits of the SHA-256 over the file's length, its header (metadata,
// vocabulary, tensor names, types and shapes) and, of each tensor, the first, the middle and the
// last 4 KiB. Cost: reading those, some milliseconds.
std::string fingerprint_of(const GgufFile& file);

}  // namespace kvspan
