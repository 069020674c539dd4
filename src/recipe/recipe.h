// SPDX-License-Identifier: Apache-2.0
// A recipe names a cache: "method:key=value,key=value", selectors joined by '+'. Parsing checks it
// against the declarations (declaration.h) and answers a mistake with what was found and what is
// allowed; text() is the canonical form that reports and files carry.
//
//     KVSPAN_TRY(const Recipe recipe, Recipe::parse("snapkv:keep=0.5+oja:ratio=0.6"));
//     recipe.method().number("ratio");           // 0.6
//     if (const RecipePart* s = recipe.selector()) s->amount("keep").resolve(tokens);
//
// Plain values, copied freely; they refer to the table of methods, which lives as long as the
// program.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvspan/result.h"
#include "recipe/declaration.h"

namespace kvspan {

// One method with a value for each of its keys. Asking for a key that the method does not declare,
// or for a kind of value that the key does not have, is the caller's fault (KVSPAN_EXPECT).
class RecipePart {
 public:
  // All keys at their defaults.
  explicit RecipePart(const MethodDeclaration& method);

  const MethodDeclaration& method() const noexcept { return *method_; }
  std::string_view name() const noexcept { return method_->name; }

  bool declares(std::string_view key) const noexcept { return method_->find_key(key) != nullptr; }
  // The key has a value, given or by default. Keys without a default have none unless given; those
  // that another key replaces (rk where energy is given) have none then.
  bool has(std::string_view key) const;
  // The key has another value than its default.
  bool given(std::string_view key) const;
  // The value is one of the key's words: always so for keys of kind word; gamma=sqrt, not gamma=1.
  bool is_word(std::string_view key) const;

  std::string_view word(std::string_view key) const;
  std::int64_t count(std::string_view key) const;
  double number(std::string_view key) const;  // numbers and shares
  RankValue rank(std::string_view key) const;
  Amount amount(std::string_view key) const;
  SketchRows rows(std::string_view key) const;
  LevelSet levels(std::string_view key) const;
  // nullopt where the key has no value.
  std::optional<std::uint64_t> bytes(std::string_view key) const;
  bool on(std::string_view key) const { return word(key) == "on"; }

  const Value& value(std::string_view key) const;
  void set(std::string_view key, Value value);

  // Canonical: keys in declared order, those at their default left out.
  std::string text() const;
  bool operator==(const RecipePart&) const = default;

 private:
  std::size_t index_of(std::string_view key) const;
  template <class T>
  const T& get(std::string_view key) const;

  const MethodDeclaration* method_;
  std::vector<Value> values_;  // in the order of method_->keys
};

class Recipe {
 public:
  // Fails with "recipe '...': " and what is wrong: the method or key, its value, what is allowed
  // and the nearest spelling.
  static Result<Recipe> parse(std::string_view text);

  // Canonical: parse(text()) equals this recipe, and equal recipes have equal texts.
  std::string text() const;

  // The selector if there is one, then the method, which is `full` where a selector stands alone.
  std::span<const RecipePart> parts() const noexcept { return parts_; }
  const RecipePart* selector() const noexcept { return parts_.size() > 1 ? &parts_[0] : nullptr; }
  const RecipePart& method() const noexcept { return parts_.back(); }

  bool operator==(const Recipe&) const = default;

 private:
  std::vector<RecipePart> parts_;
};

}  // namespace kvspan
