// SPDX-License-Identifier: Apache-2.0
// --at and --bytes: recipes fitted to hold the same number of bytes after a window of text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/output/json_output.h"
#include "eval/perplexity/perplexity.h"

namespace CLI {
class App;
}

namespace kvspan::cli {

struct EqualBytesFlags {
  std::string at;     // "8x", "4x,8x"
  std::string bytes;  // "12MiB"
  bool given() const { return !at.empty() || !bytes.empty(); }
};
// --at, --bytes
void add_equal_bytes_flags(CLI::App& app, EqualBytesFlags& flags);

// Every method whose size can be set, by name alone.
std::vector<std::string> sizable_methods();

// What --at or --bytes asks for, of tokens that take `full` bytes in f16; several where ratios are
// parted by commas. Fails, naming the flag and what is allowed, on anything else.
Result<std::vector<std::uint64_t>> asked_bytes(const EqualBytesFlags& flags, std::uint64_t full);

struct EqualBytes {
  struct Fitted {
    std::string given, recipe;
    std::uint64_t target = 0;
    std::uint64_t bytes = 0;  // as counted before measuring
  };
  struct Refused {
    std::string given, why;
    std::uint64_t target = 0;
  };
  std::vector<Fitted> fitted;
  std::vector<Refused> refused;  // no setting of theirs takes that number of bytes
};

// Fits `recipes` on `window` and says on standard error what each became. `before`: what an earlier
// run wrote (to_json), which is not fitted again; or null. Fails as reading does.
Result<EqualBytes> fit_equal_bytes(const EqualBytesFlags& flags, Engine& engine,
                                   std::span<const Token> window, std::int32_t block,
                                   const std::vector<std::string>& recipes,
                                   const CacheSource& source, const Json& before);
Json to_json(const EqualBytes& equal);

}  // namespace kvspan::cli
