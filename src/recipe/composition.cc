// SPDX-License-Identifier: Apache-2.0
#include "recipe/composition.h"

#include <algorithm>
#include <string>

#include "base/fail.h"

namespace kvspan {
namespace {

constexpr std::int64_t kBandsTileTokens = 16;

bool is_selector(const RecipePart& part) {
  return part.method().kind == MethodKind::kSelector;
}

std::string selector_names() {
  std::string names;
  for (const MethodDeclaration& method : all_methods()) {
    if (method.kind != MethodKind::kSelector) continue;
    names += (names.empty() ? "" : ", ") + std::string(method.name);
  }
  return names;
}

// Why single tokens cannot leave what `method` has stored; empty if they can.
std::string why_no_token_can_go(const RecipePart& method) {
  if (method.name() == "bands") {
    return "bands packs tiles of 16 tokens, from which none can be taken out";
  }
  if (method.name() == "quant" && method.word("layout") != "group") {
    return fmt::format(
        "with layout={} one scale covers several tokens; layout=group has one for "
        "each",
        method.word("layout"));
  }
  if (method.name() == "spectral" && method.word("store").starts_with("int")) {
    return fmt::format(
        "with store={} one scale of spectral covers several tokens; store=f16 has "
        "none",
        method.word("store"));
  }
  return {};
}

Status check_pair(const RecipePart& selector, const RecipePart& method) {
  const auto refuse = [&](const std::string& reason) {
    return fail(ErrorCode::kInvalidArgument, "{} cannot go with {}: {}", selector.name(),
                method.name(), reason);
  };
  if (method.method().tokens != TokenUse::kAll) {
    return refuse(fmt::format("{} decides itself which tokens stay", method.name()));
  }
  if (selector.method().tokens == TokenUse::kDropsSome) {
    const std::string reason = why_no_token_can_go(method);
    if (!reason.empty()) {
      return refuse(fmt::format("{} drops single tokens, and {}", selector.name(), reason));
    }
    return {};
  }
  const std::string_view unit = selector.name() == "quest" ? "page" : "chunk";
  if (method.name() == "bands" && selector.count(unit) % kBandsTileTokens != 0) {
    return refuse(fmt::format("bands is read in tiles of {} tokens, and {}={} is no multiple of it",
                              kBandsTileTokens, unit, selector.count(unit)));
  }
  if (selector.name() == "shadowkv" && selector.given("rank") && method.name() != "full") {
    return refuse(
        fmt::format("rank= says how shadowkv stores keys, and here {} stores them", method.name()));
  }
  return {};
}

}  // namespace

Status compose(std::vector<RecipePart>& parts) {
  if (parts.size() > 1) {
    for (const RecipePart& part : parts) {
      if (part.method().kind != MethodKind::kChooser) continue;
      return fail(ErrorCode::kInvalidArgument,
                  "{} stands for a whole recipe that it chooses, so nothing can be joined to it",
                  part.name());
    }
  }
  std::stable_partition(parts.begin(), parts.end(), is_selector);
  const auto selectors = std::count_if(parts.begin(), parts.end(), is_selector);
  if (selectors > 1) {
    return fail(ErrorCode::kInvalidArgument,
                "two selectors, {} and {}, would each decide over the same tokens; allowed: one "
                "selector and one method",
                parts[0].name(), parts[1].name());
  }
  if (parts.size() > static_cast<std::size_t>(selectors) + 1) {
    const auto first = static_cast<std::size_t>(selectors);
    return fail(ErrorCode::kInvalidArgument,
                "two methods, {} and {}, cannot both store a row; allowed: one method, with one "
                "selector ({}) if any",
                parts[first].name(), parts[first + 1].name(), selector_names());
  }
  if (selectors == 0) return {};
  if (parts.size() == 1) parts.emplace_back(*find_method("full"));
  return check_pair(parts[0], parts[1]);
}

}  // namespace kvspan
