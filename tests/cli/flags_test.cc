// SPDX-License-Identifier: Apache-2.0
#include "cli/flags.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <limits>

#include "cli/completion.h"

namespace kvspan::cli {
namespace {

// The error of parsing `arguments`, or "".
std::string error_of(CLI::App& app, const std::string& arguments) {
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(Flags, NumbersOutsideTheirRangeNameFlagValueAndRange) {
  CLI::App app;
  SamplingFlags flags;
  add_sampling_flags(app, flags);
  EXPECT_EQ(error_of(app, "--temp -1"),
            "--temp: '-1' is not allowed; allowed: a number from 0 to 100; 0: always the most "
            "likely token");
  for (const char* bad : {"--temp x", "--temp nan", "--temp 1,5", "--temp 1e999", "--top-k 1.5",
                          "--top-k -1", "--top-p 0", "--min-p 1.01", "-n -2", "-n 9999999999",
                          "-s 4294967296", "--repeat-penalty 0", "--repeat-last-n 0"}) {
    EXPECT_NE(error_of(app, bad).find("is not allowed; allowed: a "), std::string::npos) << bad;
  }
}

TEST(Flags, SamplingFlagsBecomeSamplerOptions) {
  CLI::App app;
  SamplingFlags flags;
  add_sampling_flags(app, flags);
  ASSERT_EQ(error_of(app,
                     "--temp 0 --top-k 3 --top-p 0.5 --min-p 0.25 --repeat-penalty 1.5 "
                     "--repeat-last-n 7 -s 9 -n -1 --stop [a,b] --stop c"),
            "");
  const SamplerOptions options = flags.sampler();
  EXPECT_EQ(options.temperature, 0.0f);
  EXPECT_EQ(options.top_k, 3);
  EXPECT_EQ(options.top_p, 0.5f);
  EXPECT_EQ(options.min_p, 0.25f);
  EXPECT_EQ(options.repeat_penalty, 1.5f);
  EXPECT_EQ(options.repeat_window, 7);
  EXPECT_EQ(options.seed, 9u);
  EXPECT_EQ(flags.token_limit(), std::numeric_limits<std::int32_t>::max());
  EXPECT_EQ(flags.stop, (std::vector<std::string>{"[a,b]", "c"}));
}

TEST(Flags, EveryFlagValueInItsRangeIsASamplerThatCanBeMade) {
  // The ranges here must not promise what the sampler refuses.
  for (const char* extreme :
       {"--temp 100", "--top-k 0", "--top-p 0.001", "--top-p 1", "--min-p 0", "--min-p 1",
        "--repeat-penalty 0.01", "--repeat-penalty 100", "-s 4294967294", "-s -1"}) {
    CLI::App app;
    SamplingFlags flags;
    add_sampling_flags(app, flags);
    ASSERT_EQ(error_of(app, extreme), "") << extreme;
    EXPECT_TRUE(Sampler::make(flags.sampler(), 512)) << extreme;
  }
}

TEST(Flags, AChoiceNamesWhatThereIs) {
  CLI::App app;
  std::string word;
  add_choice(app, "--shell", word, "", {"bash", "zsh"});
  EXPECT_EQ(error_of(app, "--shell csh"), "--shell: 'csh' is not allowed; allowed: bash, zsh");
}

TEST(Completion, ValuesAreKnownFromTypeNames) {
  CLI::App app;
  std::string value;
  bool flag = false;
  using Source = ValueKind::Source;
  EXPECT_EQ(value_kind(*app.add_flag("--a", flag)).source, Source::kNone);
  EXPECT_EQ(value_kind(*app.add_option("--b", value)->type_name("FILE")).source, Source::kFiles);
  EXPECT_EQ(value_kind(*app.add_option("--c", value)->type_name("DIR")).source, Source::kFolders);
  EXPECT_EQ(value_kind(*app.add_option("--d", value)->type_name("TEXT")).source, Source::kText);
  const ValueKind words = value_kind(*add_choice(app, "--e", value, "", {"x", "y"}));
  EXPECT_EQ(words.source, Source::kWords);
  EXPECT_EQ(words.words, (std::vector<std::string>{"x", "y"}));
}

}  // namespace
}  // namespace kvspan::cli
