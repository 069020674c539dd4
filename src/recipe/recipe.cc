// SPDX-License-Identifier: Apache-2.0
#include "recipe/recipe.h"

#include <algorithm>

#include "base/expect.h"
#include "base/fail.h"
#include "recipe/composition.h"
#include "recipe/parse_part.h"

namespace kvspan {
namespace {

Value default_of(const KeyDeclaration& key) {
  if (key.default_text.empty()) return {};
  auto value = parse_value(key, key.default_text);
  KVSPAN_EXPECT(value.has_value(), "a declared default is allowed");
  return *value;
}

Result<std::vector<RecipePart>> parse_parts(std::string_view text) {
  if (text.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "nothing is written; allowed: method:key=value,key=value, such as quant:bits=4");
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] > ' ' && text[i] < 0x7f) continue;
    return fail(ErrorCode::kInvalidArgument,
                "character {} is a blank or no plain character; allowed: letters, digits and "
                ": , = + . / % - _",
                i + 1);
  }
  std::vector<RecipePart> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t plus = std::min(text.find('+', at), text.size());
    if (plus == at) {
      return fail(ErrorCode::kInvalidArgument,
                  "part {} is empty; '+' joins a selector and a method, as in "
                  "snapkv:keep=0.5+quant:bits=4",
                  parts.size() + 1);
    }
    KVSPAN_TRY(RecipePart part, parse_part(text.substr(at, plus - at)));
    parts.push_back(std::move(part));
    at = plus + 1;
  }
  return parts;
}

}  // namespace

RecipePart::RecipePart(const MethodDeclaration& method) : method_(&method) {
  for (const KeyDeclaration& key : method.keys) values_.push_back(default_of(key));
}

std::size_t RecipePart::index_of(std::string_view key) const {
  const KeyDeclaration* found = method_->find_key(key);
  KVSPAN_EXPECT(found != nullptr, "the method declares the key");
  return static_cast<std::size_t>(found - method_->keys.data());
}

template <class T>
const T& RecipePart::get(std::string_view key) const {
  const T* found = std::get_if<T>(&value(key));
  KVSPAN_EXPECT(found != nullptr, "the key has a value of the kind asked for");
  return *found;
}

const Value& RecipePart::value(std::string_view key) const {
  return values_[index_of(key)];
}
void RecipePart::set(std::string_view key, Value value) {
  values_[index_of(key)] = value;
}

bool RecipePart::has(std::string_view key) const {
  return !std::holds_alternative<std::monostate>(value(key));
}
bool RecipePart::given(std::string_view key) const {
  return has(key) && value(key) != default_of(method_->keys[index_of(key)]);
}
bool RecipePart::is_word(std::string_view key) const {
  return std::holds_alternative<std::string_view>(value(key));
}

std::string_view RecipePart::word(std::string_view key) const {
  return get<std::string_view>(key);
}
std::int64_t RecipePart::count(std::string_view key) const {
  return get<std::int64_t>(key);
}
double RecipePart::number(std::string_view key) const {
  return get<double>(key);
}
RankValue RecipePart::rank(std::string_view key) const {
  return get<RankValue>(key);
}
Amount RecipePart::amount(std::string_view key) const {
  return get<Amount>(key);
}
SketchRows RecipePart::rows(std::string_view key) const {
  return get<SketchRows>(key);
}
LevelSet RecipePart::levels(std::string_view key) const {
  return get<LevelSet>(key);
}
std::optional<std::uint64_t> RecipePart::bytes(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return get<ByteCount>(key).bytes;
}

std::string RecipePart::text() const {
  std::string text(method_->name);
  char separator = ':';
  for (const KeyDeclaration& key : method_->keys) {
    if (!given(key.name)) continue;
    text += fmt::format("{}{}={}", separator, key.name, text_of(key.kind, value(key.name)));
    separator = ',';
  }
  return text;
}

Result<Recipe> Recipe::parse(std::string_view text) {
  auto parts = parse_parts(text);
  if (parts.has_value()) {
    if (auto composed = compose(*parts); !composed.has_value()) {
      parts = std::move(composed).error();
    }
  }
  if (!parts.has_value()) {
    return fail(parts.error().code, "recipe '{}': {}", text, parts.error().message);
  }
  Recipe recipe;
  recipe.parts_ = std::move(*parts);
  return recipe;
}

std::string Recipe::text() const {
  if (selector() == nullptr) return method().text();
  const std::string method_text = method().text();
  return method_text == "full" ? selector()->text() : selector()->text() + "+" + method_text;
}

}  // namespace kvspan
