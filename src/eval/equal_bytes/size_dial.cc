// SPDX-License-Identifier: Apache-2.0
#include "eval/equal_bytes/size_dial.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/fail.h"

namespace kvspan {
namespace {

constexpr double kNumberStep = 0.01;  // of numbers such as bits

// Values of one key by step.
struct KeyRange {
  std::int32_t least = 0, most = 0, start = 0;
  std::function<Value(std::int32_t step)> value;
};

KeyRange choices(const KeyDeclaration& key, std::int64_t now) {
  std::vector<std::int64_t> values;
  for (const std::string& word : split_words(key.choices)) values.push_back(std::stoll(word));
  std::sort(values.begin(), values.end());
  KeyRange out;
  out.most = static_cast<std::int32_t>(values.size()) - 1;
  out.start = static_cast<std::int32_t>(std::lower_bound(values.begin(), values.end(), now) -
                                        values.begin());
  out.value = [values](std::int32_t step) { return Value(values[static_cast<std::size_t>(step)]); };
  return out;
}

KeyRange counts(const KeyDeclaration& key, std::int64_t now, std::int32_t tokens) {
  const auto multiple = static_cast<std::int32_t>(key.multiple);
  const auto most = static_cast<std::int32_t>(std::min(key.max, static_cast<double>(tokens)));
  return {(static_cast<std::int32_t>(key.min) + multiple - 1) / multiple, most / multiple,
          static_cast<std::int32_t>(now) / multiple,
          [multiple](std::int32_t step) { return Value(std::int64_t{multiple} * step); }};
}

KeyRange numbers(const KeyDeclaration& key, double now) {
  return {static_cast<std::int32_t>(std::ceil(key.min / kNumberStep - 1e-9)),
          static_cast<std::int32_t>(std::floor(key.max / kNumberStep + 1e-9)),
          static_cast<std::int32_t>(std::lround(now / kNumberStep)),
          // Divided, so that 137 is 1.37 and prints as it.
          [](std::int32_t step) { return Value(step / std::round(1.0 / kNumberStep)); }};
}

// Every layer has to have the rank.
KeyRange ranks(const RankValue& now, const CacheShape& shape) {
  std::int32_t dim = shape.layers.front().key_dim;
  for (const LayerShape& layer : shape.layers) {
    dim = std::min({dim, layer.key_dim, layer.value_dim});
  }
  return {1, dim, now.resolve(dim).value_or(dim), [](std::int32_t step) {
            return Value(RankValue{RankValue::Form::kCount, step, 0.0});
          }};
}

KeyRange amounts(const Amount& now, std::int32_t tokens) {
  return {1, tokens, static_cast<std::int32_t>(now.resolve(tokens)), [](std::int32_t step) {
            return Value(Amount{false, static_cast<double>(step)});
          }};
}

Result<KeyRange> range_of(const RecipePart& part, const std::string& key, const CacheShape& shape,
                          std::int32_t tokens) {
  const KeyDeclaration& declared = *part.method().find_key(key);
  switch (declared.kind) {
    case ValueKind::kCount:
      return declared.choices.empty() ? counts(declared, part.count(key), tokens)
                                      : choices(declared, part.count(key));
    case ValueKind::kNumber:
      return numbers(declared, part.number(key));
    case ValueKind::kRank:
      return ranks(part.rank(key), shape);
    case ValueKind::kAmount:
      return amounts(part.amount(key), tokens);
    default:
      return fail(ErrorCode::kUnsupported, "{} of {} cannot be fitted", key, part.name());
  }
}

std::vector<std::string> size_keys(const RecipePart& part) {
  return part.method().size_keys.empty() ? std::vector<std::string>()
                                         : split_words(part.method().size_keys);
}

// Why a part's size is not to be turned; empty where it is.
std::string why_not(const RecipePart& part) {
  const auto keys = size_keys(part);
  if (keys.empty()) return fmt::format("no key of {} sets how many bytes it holds", part.name());
  for (const std::string& key : keys) {
    if (!part.has(key))
      return fmt::format("{} sets its size by another key than {}", part.text(), key);
    if (part.given(key)) {
      return fmt::format("{} sets {} itself; leave it out to have it fitted", part.text(), key);
    }
  }
  return {};
}

std::string text_of(const Recipe& recipe, const RecipePart& changed) {
  std::string out;
  for (const RecipePart& part : recipe.parts()) {
    if (!out.empty()) out += '+';
    out += (&part.method() == &changed.method() ? changed : part).text();
  }
  const auto parsed = Recipe::parse(out);
  return parsed ? parsed->text() : out;
}

Result<SizeDial> dial_of(const Recipe& recipe, const RecipePart& part,
                         const std::vector<std::string>& keys, const CacheShape& shape,
                         std::int32_t tokens) {
  std::vector<KeyRange> ranges;
  SizeDial out;
  for (const std::string& key : keys) {
    KVSPAN_TRY(KeyRange range, range_of(part, key, shape, tokens));
    out.least = ranges.empty() ? range.least : std::max(out.least, range.least);
    out.most = ranges.empty() ? range.most : std::min(out.most, range.most);
    out.start = range.start;
    ranges.push_back(std::move(range));
  }
  out.start = std::clamp(out.start, out.least, out.most);
  out.recipe = [recipe, part, keys, ranges](std::int32_t step) {
    RecipePart changed = part;
    for (std::size_t i = 0; i < keys.size(); ++i) changed.set(keys[i], ranges[i].value(step));
    return text_of(recipe, changed);
  };
  return out;
}

}  // namespace

Result<SizeDial> size_dial(const Recipe& recipe, const CacheShape& shape, std::int32_t tokens) {
  std::string reason;
  for (const RecipePart* part : {&recipe.method(), recipe.selector()}) {
    if (part == nullptr) continue;
    const std::string why = why_not(*part);
    if (why.empty()) return dial_of(recipe, *part, size_keys(*part), shape, tokens);
    if (reason.empty() || part->method().size_keys.empty() == false) reason = why;
  }
  return fail(ErrorCode::kInvalidArgument, "{}: {}", recipe.text(), reason);
}

Result<SizeDial> recent_dial(const Recipe& recipe, std::int32_t tokens) {
  const RecipePart& part = recipe.method();
  const KeyDeclaration* key = part.method().find_key("recent");
  if (key == nullptr || key->kind != ValueKind::kCount || part.given("recent")) {
    return fail(ErrorCode::kUnsupported, "{} has no recent tokens to add", recipe.text());
  }
  return dial_of(recipe, part, {"recent"}, CacheShape(), tokens);
}

}  // namespace kvspan
