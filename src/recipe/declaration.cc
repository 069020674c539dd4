// SPDX-License-Identifier: Apache-2.0
#include "recipe/declaration.h"

#include <algorithm>
#include <array>

#include "base/fail.h"
#include "base/spelling.h"

namespace kvspan {
namespace {

std::string list_of(std::span<const std::string> items) {
  std::string text;
  for (std::size_t i = 0; i < items.size(); ++i) {
    text += i == 0 ? "" : (i + 1 == items.size() ? " or " : ", ");
    text += items[i];
  }
  return text;
}

// The word of the declaration itself, which outlives the recipe's text.
const char* find_in(std::string_view words, std::string_view word) {
  std::size_t at = 0;
  while (at <= words.size()) {
    const std::size_t bar = std::min(words.find('|', at), words.size());
    if (words.substr(at, bar - at) == word) return words.data() + at;
    at = bar + 1;
  }
  return nullptr;
}

bool in_range(const KeyDeclaration& key, const Value& value) {
  const auto between = [&](double number) { return number >= key.min && number <= key.max; };
  if (const auto* count = std::get_if<std::int64_t>(&value)) {
    if (!key.choices.empty()) {
      return find_in(key.choices, fmt::format("{}", *count)) != nullptr;
    }
    return between(static_cast<double>(*count)) && *count % key.multiple == 0;
  }
  if (const auto* number = std::get_if<double>(&value)) return between(*number);
  if (const auto* amount = std::get_if<Amount>(&value)) return amount->value > 0.0;
  if (const auto* bytes = std::get_if<ByteCount>(&value)) return bytes->bytes > 0;
  return true;
}

std::string allowed_form(const KeyDeclaration& key) {
  switch (key.kind) {
    case ValueKind::kWord:
      return {};
    case ValueKind::kCount:
      if (!key.choices.empty()) return list_of(split_words(key.choices));
      return fmt::format(
          "a {} from {:.0f} to {:.0f}",
          key.multiple == 1 ? "whole number" : fmt::format("multiple of {}", key.multiple), key.min,
          key.max);
    case ValueKind::kNumber:
      return fmt::format("a number from {} to {}", key.min, key.max);
    case ValueKind::kShare:
      return fmt::format("a share from {} to {}", text_of(key.kind, key.min),
                         text_of(key.kind, key.max));
    case ValueKind::kRank:
      return "full, a whole number from 1, d/4 (a part of d) or 0.25 (a share of d)";
    case ValueKind::kAmount:
      return "a number of tokens from 1, or a share of them such as 0.5 or 50%";
    case ValueKind::kRows:
      return "a multiple of the rank such as 2r, or a whole number from 1";
    case ValueKind::kBytes:
      return "bytes such as 512MiB, 1.5GiB or 64kB";
    case ValueKind::kLevels:
      return fmt::format("bit widths from 0 to {}, such as 0-6/8", LevelSet::kMax);
  }
  return {};
}

}  // namespace

std::vector<std::string> split_words(std::string_view words) {
  std::vector<std::string> items;
  while (!words.empty()) {
    const std::size_t bar = std::min(words.find('|'), words.size());
    items.emplace_back(words.substr(0, bar));
    words.remove_prefix(std::min(bar + 1, words.size()));
  }
  return items;
}

std::string allowed_text(const KeyDeclaration& key) {
  const std::string form = allowed_form(key);
  const auto words = split_words(key.words);
  if (words.empty()) return form;
  if (form.empty()) return list_of(words);
  std::string text;
  for (const std::string& word : words) text += word + ", ";
  text.erase(text.size() - 2);
  return text + " or " + form;
}

Result<Value> parse_value(const KeyDeclaration& key, std::string_view text) {
  if (!text.empty()) {
    if (const char* word = find_in(key.words, text)) {
      return Value(std::string_view(word, text.size()));
    }
    const auto value = read_value(key.kind, text);
    if (value && in_range(key, *value)) return *value;
  }
  const auto words = split_words(key.words);
  return fail(ErrorCode::kInvalidArgument, "{}={}; allowed: {}{}", key.name, text,
              allowed_text(key), did_you_mean(text, words));
}

std::string text_of(const KeyRule& rule) {
  switch (rule.kind) {
    case KeyRule::Kind::kExcludes:
      return fmt::format(
          "{} and {} exclude each other{}: {}", rule.key, rule.other,
          rule.value.empty() ? "" : fmt::format(" ({}={} goes)", rule.other, rule.value),
          rule.reason);
    case KeyRule::Kind::kOnlyWith:
      return fmt::format("{} needs {}={}: {}", rule.key, rule.other,
                         list_of(split_words(rule.value)), rule.reason);
    case KeyRule::Kind::kTogether:
      return fmt::format("{} needs {}: {}", rule.key, rule.other, rule.reason);
    case KeyRule::Kind::kOneOf:
      return fmt::format("one of {} is needed", list_of(split_words(rule.key)));
    case KeyRule::Kind::kImplies:
      return fmt::format("{}={} implies {}={}: {}", rule.other, rule.value, rule.key, rule.implied,
                         rule.reason);
  }
  return {};
}

std::string_view name_of(MethodKind kind) noexcept {
  constexpr std::array<std::string_view, 4> kNames{"method", "baseline", "selector", "chooser"};
  return kNames[static_cast<std::size_t>(kind)];
}

const KeyDeclaration* MethodDeclaration::find_key(std::string_view key) const noexcept {
  const auto found =
      std::find_if(keys.begin(), keys.end(), [&](const auto& k) { return k.name == key; });
  return found == keys.end() ? nullptr : &*found;
}

const MethodDeclaration* find_method(std::string_view name) noexcept {
  for (const MethodDeclaration& method : all_methods()) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

}  // namespace kvspan
