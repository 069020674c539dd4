// SPDX-License-Identifier: Apache-2.0
#include "llama/tokenizer.h"

namespace kvspan {
namespace {

// Length of the character that `lead` begins; 0 if it begins none.
std::size_t length_from_lead(unsigned char lead) noexcept {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) return 3;
  if (lead >= 0xf0 && lead <= 0xf4) return 4;
  return 0;
}

// Overlong forms, surrogates and values beyond U+10FFFF show in the second byte.
bool second_byte_fits(unsigned char lead, unsigned char second) noexcept {
  switch (lead) {
    case 0xe0:
      return second >= 0xa0;
    case 0xed:
      return second <= 0x9f;
    case 0xf0:
      return second >= 0x90;
    case 0xf4:
      return second <= 0x8f;
    default:
      return true;
  }
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) noexcept {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = length_from_lead(lead);
    if (length == 0 || i + length > text.size()) return i;
    for (std::size_t k = 1; k < length; ++k) {
      const auto byte = static_cast<unsigned char>(text[i + k]);
      if ((byte & 0xc0) != 0x80 || (k == 1 && !second_byte_fits(lead, byte))) return i;
    }
    i += length;
  }
  return std::string_view::npos;
}

std::size_t incomplete_utf8_tail(std::string_view text) noexcept {
  const std::size_t most = text.size() < 3 ? text.size() : 3;
  for (std::size_t back = 1; back <= most; ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;
    return length_from_lead(byte) > back ? back : 0;
  }
  return 0;
}

}  // namespace kvspan
