// SPDX-License-Identifier: Apache-2.0
#include "recipe/composition.h"

#include <algorithm>
#include <string>

#include "base/fail.h"

namespace kvspan {
namespace {

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

Status check_pair(const RecipePart& selector, const RecipePart& method) {
  const auto refuse = [&](const std::string& reason) {
    return fail(ErrorCode::kInvalidArgument, "{} cannot go with {}: {}", selector.name(),
                method.name(), reason);
  };
  if (method.method().tokens != TokenUse::kAll) {
    return refuse(fmt::format("{} decides itself which tokens stay", method.name()));
  }
  if (selector.method().tokens == TokenUse::kDropsSome) {
    const auto why = method.method().why_tokens_stay;
    const std::string reason = why != nullptr ? why(method) : std::string();
    if (!reason.empty()) {
      return refuse(fmt::format("{} drops single tokens, and {}", selector.name(), reason));
    }
  }
  const std::string_view page = selector.method().page_key;
  const std::int64_t tile = method.method().tile_tokens;
  if (!page.empty() && selector.count(page) % tile != 0) {
    return refuse(fmt::format("{} is read in tiles of {} tokens, and {}={} is no multiple of it",
                              method.name(), tile, page, selector.count(page)));
  }
  if (const auto check = selector.method().check_method) {
    if (Status fits = check(selector, method); !fits) return refuse(fits.error().message);
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
