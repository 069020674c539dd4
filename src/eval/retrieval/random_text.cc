// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval/random_text.h"

#include <numeric>

#include "base/expect.h"
#include "base/fail.h"

namespace kvspan {

std::vector<std::size_t> draw(std::size_t count, std::size_t size, Random& random) {
  KVSPAN_EXPECT(count <= size, "no more than there are");
  std::vector<std::size_t> all(size);
  std::iota(all.begin(), all.end(), std::size_t{0});
  for (std::size_t i = 0; i < count; ++i) {
    std::swap(all[i], all[i + random.below(static_cast<std::uint32_t>(size - i))]);
  }
  all.resize(count);
  return all;
}

std::string random_number(int digits, Random& random) {
  std::string out(1, static_cast<char>('1' + random.below(9)));
  while (out.size() < static_cast<std::size_t>(digits)) {
    out.push_back(static_cast<char>('0' + random.below(10)));
  }
  return out;
}

std::string random_letters(char first, int count, Random& random) {
  std::string out;
  for (int i = 0; i < count; ++i) out.push_back(static_cast<char>(first + random.below(26)));
  return out;
}

std::string random_uuid(Random& random) {
  const std::uint64_t high = (random.bits() & ~0xf000ull) | 0x4000ull;
  const std::uint64_t low = (random.bits() & ~(0xc000ull << 48)) | (0x8000ull << 48);
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, (high >> 16) & 0xffff,
                     high & 0xffff, low >> 48, low & 0xffffffffffffull);
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) out.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string filled(std::string text,
                   const std::vector<std::pair<std::string_view, std::string_view>>& values) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    bool found = false;
    for (const auto& [name, value] : values) {
      if (text[at] == '{' && text.compare(at + 1, name.size(), name) == 0 &&
          at + 1 + name.size() < text.size() && text[at + 1 + name.size()] == '}') {
        out += value;
        at += name.size() + 2;
        found = true;
        break;
      }
    }
    if (!found) out.push_back(text[at++]);
  }
  return out;
}

}  // namespace kvspan
