// SPDX-License-Identifier: Apache-2.0
#include "cli/equal_bytes.h"

#include <cmath>
#include <limits>

#include "base/fail.h"
#include "cli/flags.h"
#include "cli/output/format.h"
#include "cli/output/progress_bar.h"
#include "eval/equal_bytes/byte_probe.h"
#include "eval/equal_bytes/fit_bytes.h"
#include "recipe/recipe.h"

namespace kvspan::cli {
namespace {

void say(const EqualBytes::Fitted& fitted, std::uint64_t full) {
  fmt::print(stderr, "kvspan: {} becomes {}: {}, {}\n", fitted.given, fitted.recipe,
             format_bytes(fitted.bytes), format_ratio(full, fitted.bytes));
}

// Of an earlier run that was asked for the same bytes.
std::optional<EqualBytes::Fitted> known_fit(const Json& before, std::uint64_t target,
                                            const std::string& given) {
  if (!before.is_object()) return {};
  for (const Json& fitted : before.value("fitted", Json::array())) {
    const bool same = fitted.value("target_bytes", std::uint64_t{0}) == target;
    if (!same || fitted.value("given", "") != given) continue;
    return EqualBytes::Fitted{given, fitted.value("recipe", ""), target,
                              fitted.value("kv_bytes", std::uint64_t{0})};
  }
  return {};
}

}  // namespace

void add_equal_bytes_flags(CLI::App& app, EqualBytesFlags& flags) {
  add_text(app, "--at", flags.at,
           "Fit every recipe to so many times fewer bytes than f16, at a window's end (8x, or "
           "several: 4x,8x); without --cache all methods",
           "RATIO");
  add_text(app, "--bytes", flags.bytes, "The same as a number of bytes, such as 12MiB", "BYTES");
  exclude_each_other(app, "--at", "--bytes");
}

std::vector<std::string> sizable_methods() {
  std::vector<std::string> out;
  for (const MethodDeclaration& method : all_methods()) {
    if (!method.size_keys.empty()) out.emplace_back(method.name);
  }
  return out;
}

namespace {

Result<std::uint64_t> bytes_at(std::string_view ratio_text, std::uint64_t full) {
  std::string_view text = ratio_text;
  if (text.ends_with('x')) text.remove_suffix(1);
  const auto value = text.empty() ? std::nullopt : read_value(kvspan::ValueKind::kNumber, text);
  const double ratio = value && !text.ends_with('%') ? std::get<double>(*value) : 0.0;
  if (!(ratio >= 1.0 && ratio <= 1000.0)) {
    return fail(ErrorCode::kInvalidArgument,
                "--at: '{}'; allowed: how many times fewer bytes than f16, from 1x to 1000x, such "
                "as 8x",
                ratio_text);
  }
  return static_cast<std::uint64_t>(std::llround(static_cast<double>(full) / ratio));
}

}  // namespace

Result<std::vector<std::uint64_t>> asked_bytes(const EqualBytesFlags& flags, std::uint64_t full) {
  if (!flags.bytes.empty()) {
    const auto value = read_value(kvspan::ValueKind::kBytes, flags.bytes);
    if (!value || std::get<ByteCount>(*value).bytes == 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "--bytes: '{}'; allowed: a number of bytes above 0, such as 12MiB or 5000000",
                  flags.bytes);
    }
    return std::vector{std::get<ByteCount>(*value).bytes};
  }
  std::vector<std::uint64_t> out;
  for (std::string_view rest = flags.at;;) {
    const std::size_t comma = rest.find(',');
    KVSPAN_TRY(const std::uint64_t bytes, bytes_at(rest.substr(0, comma), full));
    out.push_back(bytes);
    if (comma == std::string_view::npos) return out;
    rest.remove_prefix(comma + 1);
  }
}

Result<EqualBytes> fit_equal_bytes(const EqualBytesFlags& flags, Engine& engine,
                                   std::span<const Token> window, std::int32_t block,
                                   const std::vector<std::string>& recipes,
                                   const CacheSource& source, const Json& before) {
  const auto tokens = static_cast<std::int32_t>(window.size());
  const std::uint64_t full = full_rank_f16_bytes(engine.cache_shape(), tokens);
  KVSPAN_TRY(const std::vector<std::uint64_t> targets, asked_bytes(flags, full));
  EqualBytes out;
  std::optional<ByteProbe> probe;
  // One recipe at one number of bytes.
  const auto fit = [&](const Recipe& recipe, std::uint64_t target) -> Status {
    if (auto known = known_fit(before, target, recipe.text())) {
      out.fitted.push_back(std::move(*known));
      return {};
    }
    if (!probe) {
      ProgressBar bar("reading to fit", "tokens", window.size());
      KVSPAN_TRY(probe, ByteProbe::record(engine, window, block,
                                          [&](std::size_t done) { bar.update(done); }));
    }
    const auto fitted =
        fit_recipe(recipe, target, engine.cache_shape(), tokens,
                   [&](const std::string& tried) { return probe->bytes(tried, source); });
    if (fitted) {
      out.fitted.push_back({recipe.text(), fitted->recipe, target, fitted->bytes});
      say(out.fitted.back(), full);
    } else if (fitted.error().code == ErrorCode::kInvalidArgument) {
      out.refused.push_back({recipe.text(), fitted.error().message, target});
    } else {
      return fitted.error();
    }
    return {};
  };
  for (const std::string& recipe : recipes) {
    KVSPAN_TRY(const Recipe parsed, Recipe::parse(recipe));
    if (parsed.text() == "full") continue;  // the reference
    for (const std::uint64_t target : targets) KVSPAN_CHECK_OK(fit(parsed, target));
  }
  return out;
}

Json to_json(const EqualBytes& equal) {
  Json json{{"fitted", Json::array()}, {"refused", Json::array()}};
  for (const EqualBytes::Fitted& fitted : equal.fitted) {
    json["fitted"].push_back({{"given", fitted.given},
                              {"target_bytes", fitted.target},
                              {"recipe", fitted.recipe},
                              {"kv_bytes", fitted.bytes}});
  }
  for (const EqualBytes::Refused& refused : equal.refused) {
    json["refused"].push_back(
        {{"given", refused.given}, {"target_bytes", refused.target}, {"why", refused.why}});
  }
  return json;
}

}  // namespace kvspan::cli
