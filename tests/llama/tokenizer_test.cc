// SPDX-License-Identifier: Apache-2.0
// Token ids against llama.cpp's own test vectors, for three kinds of vocabulary.
#include "llama/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

namespace kvspan::testing {
namespace tokenizer_test {

std::string data_file(const std::string& name) {
  return std::string(KVSPAN_SOURCE_DIR "/data/tokenizers/") + name;
}

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Test strings, each followed by the separator line.
std::vector<std::string> vector_inputs() {
  const std::string all = text_of(data_file("ggml-vocab.inp"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> inputs;
  for (std::size_t at = 0;;) {
    const std::size_t end = all.find(separator, at);
    if (end == std::string::npos) break;
    inputs.push_back(all.substr(at, end - at));
    at = end + separator.size();
  }
  return inputs;
}

std::vector<std::vector<Token>> vector_outputs(const std::string& name) {
  std::ifstream in(data_file(name + ".out"));
  std::vector<std::vector<Token>> outputs;
  for (std::string line; std::getline(in, line);) {
    std::istringstream ids(line);
    outputs.emplace_back(std::istream_iterator<Token>(ids), std::istream_iterator<Token>());
  }
  return outputs;
}

class TokenVectors : public ::testing::TestWithParam<std::string> {};

TEST_P(TokenVectors, EqualLlamaCpp) {
  // The build unpacks the vocabularies, which are kept compressed.
  auto tokenizer = Tokenizer::open(std::string(KVSPAN_VOCABULARIES "/") + GetParam() + ".gguf");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto inputs = vector_inputs();
  const auto outputs = vector_outputs(GetParam());
  ASSERT_GE(inputs.size(), 40u);
  ASSERT_EQ(inputs.size(), outputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto tokens = (*tokenizer)->encode(inputs[i], {.add_special = false});
    ASSERT_TRUE(tokens) << tokens.error().message;
    EXPECT_EQ(*tokens, outputs[i]) << "string " << i << ": '" << inputs[i] << "'";
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, TokenVectors,
                         ::testing::Values("ggml-vocab-llama-spm", "ggml-vocab-gpt-2",
                                           "ggml-vocab-mpt"),
                         [](const auto& vocabulary) {
                           std::string name = vocabulary.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Tokenizer, BytesDecodeToTheText) {
  auto tokenizer = Tokenizer::open(std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf"));
  ASSERT_TRUE(tokenizer);
  const std::string text = "Grüße, 世界! \xf0\x9f\x8c\xb2";
  const auto tokens = (*tokenizer)->encode(text, {.add_special = false}).value();
  EXPECT_EQ((*tokenizer)->decode(tokens), " " + text);  // SentencePiece puts a space before
}

TEST(Tokenizer, InvalidUtf8NamesTheByte) {
  auto tokenizer = Tokenizer::open(std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf"));
  ASSERT_TRUE(tokenizer);
  const auto tokens = (*tokenizer)
                          ->encode(
                              "ab\xff"
                              "cd",
                              {});
  ASSERT_FALSE(tokens);
  EXPECT_EQ(tokens.error().message, "the text is not valid UTF-8 at byte 2 (0xff)");
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(find_invalid_utf8(""), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("aé世\xf0\x9f\x8c\xb2"), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("a\x80"), 1u);             // continuation without lead
  EXPECT_EQ(find_invalid_utf8("ab\xe4\xb8"), 2u);        // cut short
  EXPECT_EQ(find_invalid_utf8("\xc0\xaf"), 0u);          // overlong
  EXPECT_EQ(find_invalid_utf8("\xe0\x80\xaf"), 0u);      // overlong
  EXPECT_EQ(find_invalid_utf8("x\xed\xa0\x80"), 1u);     // surrogate
  EXPECT_EQ(find_invalid_utf8("\xf4\x90\x80\x80"), 0u);  // beyond U+10FFFF
}

TEST(Utf8, KnowsHowManyBytesOfACharacterAreThere) {
  EXPECT_EQ(incomplete_utf8_tail("abc"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("a\xe4"), 1u);
  EXPECT_EQ(incomplete_utf8_tail("a\xe4\xb8"), 2u);
  EXPECT_EQ(incomplete_utf8_tail("a\xe4\xb8\x96"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("\xf0\x9f\x8c"), 3u);
  EXPECT_EQ(incomplete_utf8_tail(""), 0u);
}

}  // namespace tokenizer_test
}  // namespace kvspan::testing
