// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/answer_flags.h"

#include <fmt/format.h>
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
  for (const char* bad :
       {"--temp x", "--temp nan", "--temp 1,5", "--temp 1e999", "--top-k 1.5", "--top-k -1",
        "--top-p 0", "--min-p 1.01", "-n -2", "-n 9999999999", "-s 4294967296",
        "--repeat-penalty 0", "--repeat-last-n 0", "--mirostat 3", "--typical 0",
        "--xtc-probability 2", "--dry-base 0.5", "--presence-penalty inf"}) {
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
  const SamplerOptions options = flags.sampler().value();
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
  const auto engine =
      Engine::load(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf", {.block = 16}).value();
  for (const char* extreme : {"--temp 100",
                              "--top-k 0",
                              "--top-p 0.001",
                              "--top-p 1",
                              "--min-p 0",
                              "--min-p 1",
                              "--repeat-penalty 0.01",
                              "--repeat-penalty 100",
                              "-s 4294967294",
                              "-s -1",
                              "--presence-penalty -100",
                              "--frequency-penalty 100",
                              "--repeat-penalty 2 --repeat-last-n "
                              "2147483647",
                              "--dry-multiplier 100 --dry-base 100 --dry-penalty-last-n 2147483647",
                              "--dry-multiplier 1 --dry-base 1 --dry-allowed-length 0",
                              "--typical 0.001",
                              "--xtc-probability 1 --xtc-threshold 0",
                              "--mirostat 1 --mirostat-lr 0",
                              "--mirostat 2 --mirostat-ent 0",
                              "-l 511-inf -l 0+3.5",
                              "--ignore-eos"}) {
    CLI::App app;
    SamplingFlags flags;
    add_sampling_flags(app, flags);
    ASSERT_EQ(error_of(app, extreme), "") << extreme;
    EXPECT_TRUE(Sampler::make(flags.sampler().value(), *engine)) << extreme;
  }
}

TEST(Flags, LogitBiasesAreATokenASignAndANumber) {
  SamplingFlags flags;
  flags.logit_bias = {"15043+1.5", "7-inf"};
  const SamplerOptions options = flags.sampler().value();
  ASSERT_EQ(options.logit_bias.size(), 2u);
  EXPECT_EQ(options.logit_bias[0].token, 15043);
  EXPECT_EQ(options.logit_bias[0].bias, 1.5f);
  EXPECT_EQ(options.logit_bias[1].bias, -std::numeric_limits<float>::infinity());
  for (const char* bad : {"", "7", "7+", "+1", "x+1", "7+x", "7+-1", "7-nan", "7.5+1"}) {
    flags.logit_bias = {bad};
    const auto refused = flags.sampler();
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.error().message,
              fmt::format("--logit-bias: '{}' is not allowed; allowed: a token and what is added "
                          "to its logit, as 15043+1 or 15043-inf",
                          bad));
  }
}

TEST(Flags, ScaledAdaptersEndInANumber) {
  CompanionFlags flags;
  flags.lora = {"a.gguf"};
  flags.lora_scaled = {"dir:x/b.gguf:-0.5"};
  const auto adapters = flags.adapters().value();
  ASSERT_EQ(adapters.size(), 2u);
  EXPECT_EQ(adapters[0].scale, 1.0f);
  EXPECT_EQ(adapters[1].path, "dir:x/b.gguf");
  EXPECT_EQ(adapters[1].scale, -0.5f);
  for (const char* bad : {"", "b.gguf", "b.gguf:", "b.gguf:x", ":1", "b.gguf:nan"}) {
    flags.lora_scaled = {bad};
    ASSERT_FALSE(flags.adapters()) << bad;
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
