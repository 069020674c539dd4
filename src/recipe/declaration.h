// SPDX-License-Identifier: Apache-2.0
// What each method of a recipe is called, which keys it takes, which of them go together, and what
// makes it: one row for each, that parsing, composing, making, `kvspan methods` and the
// documentation read. No method is implemented here.
// Adding a method: a file with its row and what makes it, and its line in method/method_table.cc.
// Names and keys end up in files and reports: never give one a second meaning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvspan/result.h"
#include "recipe/value.h"

namespace kvspan {

class RecipePart;

struct KeyDeclaration {
  std::string_view name;
  ValueKind kind = ValueKind::kWord;
  std::string_view default_text;  // empty: not set unless given
  std::string_view summary;
  std::string_view words;  // separated by '|'; beside numbers too (gamma=sqrt)
  double min = 0.0;        // counts, numbers, shares; bounds included
  double max = 0.0;
  std::int64_t multiple = 1;  // counts: what must divide it
  std::string_view choices;   // counts: the only ones, separated by '|'; empty: min..max
};

// The value that `text` writes for `key`, or an error: "rk=seven; allowed: ...".
Result<Value> parse_value(const KeyDeclaration& key, std::string_view text);
// "f16, f32 or int8", "a whole number from 1 to 4096", ...
std::string allowed_text(const KeyDeclaration& key);
// The items of a list written a|b|c.
std::vector<std::string> split_words(std::string_view words);

// Keys of one method that depend on each other.
struct KeyRule {
  enum class Kind : std::uint8_t {
    kExcludes,  // `key` and `other` are not both given, unless other=value. Where `key` is given
                // and `other` not, `other` has no value, its default neither.
    kOnlyWith,  // `key` is given only where `other` has one of the words `value`
    kTogether,  // `key` is given only with `other`
    kOneOf,     // one of the keys `key` (a|b) is given
    kImplies,   // where other=value, `key` is `implied`, and nothing else can be given for it
  };
  Kind kind;
  std::string_view key, other, value, implied;
  std::string_view reason;  // a clause that can follow "; "
};

// The rule as a sentence: "energy and rk exclude each other (but rk=full goes): ...".
std::string text_of(const KeyRule& rule);

enum class MethodKind : std::uint8_t {
  kMethod,    // learned directions: decides how rows are coded
  kBaseline,  // the same without learning
  kSelector,  // decides which tokens are kept or read; joins a method with '+'
  kChooser,   // stands for the recipe that it finds
};
std::string_view name_of(MethodKind kind) noexcept;

// What happens to tokens, which decides what goes together.
enum class TokenUse : std::uint8_t { kAll, kDropsSome, kReadsSome };

// What rows point to, of rooms that come later.
struct Calibration;    // kvspan/calibration.h
struct CacheShape;     // kvspan/cache.h
struct PreparedLayer;  // method/prepared.h
class Ledger;          // base/memory.h
class Selector;        // method/selectors/selector.h
namespace detail {
struct PrepareInput;  // method/prepare_parts.h
}
using MakeSelector = std::function<std::unique_ptr<Selector>(const std::shared_ptr<Ledger>&)>;

struct MethodDeclaration {
  std::string_view name = {};
  MethodKind kind = MethodKind::kMethod;
  TokenUse tokens = TokenUse::kAll;
  std::string_view summary = {};  // one line, no full stop
  std::string_view source = {};   // paper or document
  std::span<const KeyDeclaration> keys = {};
  std::span<const KeyRule> rules = {};
  // What no rule can say; null where nothing is left to check. The error needs no context.
  Status (*check)(const RecipePart& part) = nullptr;
  std::string_view example = {};  // a recipe that parses
  // The keys, separated by '|', that together set how many bytes it holds, the more the larger they
  // are; empty: none does.
  std::string_view size_keys = {};

  // What makes it; null in rows of another kind. A selector of no layer gives an empty function.
  Result<std::vector<PreparedLayer>> (*make)(const detail::PrepareInput& in) = nullptr;
  MakeSelector (*make_selector)(const RecipePart& part, std::size_t layer) = nullptr;
  Result<std::string> (*choose)(const CacheShape& shape, const RecipePart& part,
                                const Calibration& calibration) = nullptr;
  // Whether it can only be made with a calibration of the model; null: it never needs one.
  bool (*needs_calibration)(const RecipePart& part) = nullptr;

  // What it composes with. Of methods that store tokens: how many tokens are read together, all or none;
  // and why a single token cannot be dropped (a clause; null or empty: it can).
  std::int64_t tile_tokens = 1;
  std::string (*why_tokens_stay)(const RecipePart& part) = nullptr;
  // Of selectors: the key that counts the tokens it chooses together; why it cannot go with a
  // method (null: no reason of its own); and the recipe that it stores tokens by where no method is
  // named (null or empty: full).
  std::string_view page_key = {};
  Status (*check_method)(const RecipePart& selector, const RecipePart& method) = nullptr;
  std::string (*stores_by)(const CacheShape& shape, const RecipePart& selector) = nullptr;

  // Null if there is no such key.
  const KeyDeclaration* find_key(std::string_view key) const noexcept;
};

// Every method, in the order in which they are listed to people; method/method_table.cc.
std::span<const MethodDeclaration> all_methods() noexcept;
// Null if there is none of that name.
const MethodDeclaration* find_method(std::string_view name) noexcept;

}  // namespace kvspan
