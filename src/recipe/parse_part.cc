// SPDX-License-Identifier: Apache-2.0
#include "recipe/parse_part.h"

#include <algorithm>
#include <map>

#include "base/fail.h"
#include "base/spelling.h"

namespace kvspan {
namespace {

// The keys that the text writes, with the text of their values.
using Given = std::map<std::string_view, std::string_view>;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

Result<const MethodDeclaration*> method_named(std::string_view name) {
  if (const MethodDeclaration* method = find_method(name)) return method;
  std::vector<std::string> names;
  for (const MethodDeclaration& method : all_methods()) names.emplace_back(method.name);
  return fail(ErrorCode::kInvalidArgument, "unknown method '{}'{}; allowed: {}", name,
              did_you_mean(name, names), joined(names));
}

Result<const KeyDeclaration*> key_named(const MethodDeclaration& method, std::string_view name) {
  if (const KeyDeclaration* key = method.find_key(name)) return key;
  std::vector<std::string> names;
  for (const KeyDeclaration& key : method.keys) names.emplace_back(key.name);
  return fail(ErrorCode::kInvalidArgument, "{} has no key '{}'{}; allowed: {}", method.name, name,
              did_you_mean(name, names), joined(names));
}

// One "key=value" into `part`.
Status parse_item(std::string_view item, RecipePart& part, Given& given,
                  const KeyDeclaration*& last) {
  const MethodDeclaration& method = part.method();
  if (item.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "{} has an empty key after ':' or ','; allowed: {} or {}:{}=...", method.name,
                method.name, method.name, method.keys.front().name);
  }
  const std::size_t equals = item.find('=');
  if (equals == std::string_view::npos) {
    if (last != nullptr && last->kind == ValueKind::kLevels) {
      return fail(ErrorCode::kInvalidArgument,
                  "'{}' of {} has no '='; the widths of {} are separated by '/', as in {}=0-6/8",
                  item, method.name, last->name, last->name);
    }
    const KeyDeclaration* key = method.find_key(item);
    return fail(ErrorCode::kInvalidArgument, "'{}' of {} has no '='; allowed: {}", item,
                method.name,
                key != nullptr ? fmt::format("{}= {}", item, allowed_text(*key)) : "key=value");
  }
  KVSPAN_TRY(const KeyDeclaration* key, key_named(method, item.substr(0, equals)));
  const std::string_view text = item.substr(equals + 1);
  if (const auto before = given.find(key->name); before != given.end()) {
    return fail(ErrorCode::kInvalidArgument,
                "{} of {} is given twice, {}={} and {}={}; allowed: "
                "each key once",
                key->name, method.name, key->name, before->second, key->name, text);
  }
  auto value = parse_value(*key, text);
  if (!value.has_value()) {
    return fail(ErrorCode::kInvalidArgument, "{}: {}", method.name, value.error().message);
  }
  part.set(key->name, *value);
  given.emplace(key->name, text);
  last = key;
  return {};
}

bool is_one_of(std::string_view word, std::string_view words) {
  const auto list = split_words(words);
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Both are given though one excludes the other.
Status check_excludes(const KeyRule& rule, RecipePart& part, const Given& given) {
  const auto key = given.find(rule.key), other = given.find(rule.other);
  if (key == given.end()) return {};
  if (other == given.end()) {
    part.set(rule.other, {});
    return {};
  }
  if (!rule.value.empty() && other->second == rule.value) return {};
  return fail(ErrorCode::kInvalidArgument,
              "{}: {}={} and {}={} exclude each other: {}; allowed: one of the two{}", part.name(),
              rule.key, key->second, rule.other, other->second, rule.reason,
              rule.value.empty() ? "" : fmt::format(", or {}={}", rule.other, rule.value));
}

Status check_rule(const KeyRule& rule, RecipePart& part, const Given& given) {
  const auto key = given.find(rule.key);
  switch (rule.kind) {
    case KeyRule::Kind::kExcludes:
      return check_excludes(rule, part, given);
    case KeyRule::Kind::kOnlyWith: {
      if (key == given.end() || is_one_of(part.word(rule.other), rule.value)) return {};
      return fail(ErrorCode::kInvalidArgument, "{}: {}={} needs {}={}, not {}: {}", part.name(),
                  rule.key, key->second, rule.other, rule.value, part.word(rule.other),
                  rule.reason);
    }
    case KeyRule::Kind::kTogether:
      if (key == given.end() || given.contains(rule.other)) return {};
      return fail(ErrorCode::kInvalidArgument, "{}: {}={} needs {} too: {}", part.name(), rule.key,
                  key->second, rule.other, rule.reason);
    case KeyRule::Kind::kOneOf: {
      const auto keys = split_words(rule.key);
      if (std::any_of(keys.begin(), keys.end(), [&](const auto& k) { return given.contains(k); })) {
        return {};
      }
      return fail(ErrorCode::kInvalidArgument, "{} needs one of {}: {} For example: {}",
                  part.name(), joined(keys), rule.reason, part.method().example);
    }
    case KeyRule::Kind::kImplies:
      if (part.word(rule.other) != rule.value) return {};
      if (key != given.end() && key->second != rule.implied) {
        return fail(ErrorCode::kInvalidArgument, "{}: {}={} with {}={}: {}; allowed: {}={}",
                    part.name(), rule.key, key->second, rule.other, rule.value, rule.reason,
                    rule.key, rule.implied);
      }
      KVSPAN_TRY(const Value implied, parse_value(*part.method().find_key(rule.key), rule.implied));
      part.set(rule.key, implied);
      return {};
  }
  return {};
}

}  // namespace

Result<RecipePart> parse_part(std::string_view text) {
  const std::size_t colon = text.find(':');
  KVSPAN_TRY(const MethodDeclaration* method, method_named(text.substr(0, colon)));
  RecipePart part(*method);
  Given given;
  const KeyDeclaration* last = nullptr;
  if (colon != std::string_view::npos) {
    std::string_view rest = text.substr(colon + 1);
    while (true) {
      const std::size_t comma = rest.find(',');
      KVSPAN_CHECK_OK(parse_item(rest.substr(0, comma), part, given, last));
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  }
  for (const KeyRule& rule : method->rules) KVSPAN_CHECK_OK(check_rule(rule, part, given));
  if (method->check != nullptr) {
    if (auto checked = method->check(part); !checked.has_value()) {
      return fail(checked.error().code, "{}: {}", method->name, checked.error().message);
    }
  }
  return part;
}

}  // namespace kvspan
