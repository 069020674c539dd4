// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/sequence_properties.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <utility>

#include "tests/base/sweep.h"
#include "tests/method/synthetic.h"

namespace kvspan::conformance {
namespace {

using Owned = std::unique_ptr<Sequence>;
using Bytes = std::vector<std::byte>;

bool failed() {
  return ::testing::Test::HasFailure();
}

void expect_ok(const Status& status) {
  EXPECT_TRUE(status) << status.error().message;
}

// Empty where it failed, which has failed the test.
template <class T>
T value_of(Result<T> result) {
  EXPECT_TRUE(result) << result.error().message;
  return result ? std::move(result).value() : T();
}

Bytes saved(const Sequence& sequence) {
  return value_of(sequence.save());
}
Owned fork(const Sequence& sequence) {
  return value_of(sequence.fork());
}

std::vector<float> step(Sequence& sequence, std::int32_t n) {
  std::vector<float> out;
  expect_ok(sequence.step(n, out));
  return out;
}

// The next n tokens in calls of up to `block`.
std::vector<float> feed(Sequence& sequence, std::int32_t n, std::int32_t block) {
  std::vector<float> all;
  for (std::int32_t at = 0; at < n && !failed(); at += block) {
    const std::vector<float> out = step(sequence, std::min(block, n - at));
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

// Tokens of the text before a position.
std::int32_t tokens_before(const Source& source, std::int32_t position) {
  const auto all = source.positions();
  return std::int32_t(std::lower_bound(all.begin(), all.end(), position) - all.begin());
}

std::array<std::size_t, 7> bytes_of(const Sequence& sequence) {
  const CacheBytes b = sequence.bytes();
  return {b.full_rank, b.coefficients, b.scales, b.bases, b.sketches, b.positions, b.total};
}

// All that a user can observe of two sequences without a step.
void expect_same_state(const Sequence& a, const Sequence& b) {
  EXPECT_EQ(a.tokens(), b.tokens());
  EXPECT_EQ(a.least_tokens(), b.least_tokens());
  EXPECT_EQ(bytes_of(a), bytes_of(b)) << "full rank, coefficients, scales, bases, sketches, positions, total";
  EXPECT_TRUE(saved(a) == saved(b)) << "what is saved differs";
}

}  // namespace

bool is_long_run() {
  static const bool is_long = std::getenv("KVSPAN_TEST_ALL") != nullptr;
  return is_long;
}

Reach reach() {
  if (testing::kSanitized) return {100, 17, 11};
  return is_long_run() ? Reach{220, 40, 1} : Reach{104, 17, 7};
}

void continues_after_loading(const Source& source) {
  const Reach far = reach();
  const Owned original = source.make();
  struct Copy {
    Owned sequence;
    std::int32_t from, until;
  };
  std::vector<Copy> copies;
  for (std::int32_t n = 0; n < far.tokens + far.ahead && !failed(); ++n) {
    SCOPED_TRACE("at token " + std::to_string(n));
    if (n <= far.tokens) {
      Result<Owned> loaded = source.load(saved(*original));
      ASSERT_TRUE(loaded) << loaded.error().message;
      expect_same_state(**loaded, *original);
      copies.push_back({std::move(*loaded), n, n + (n % far.stride == 0 ? far.ahead : 1)});
    }
    const std::vector<float> out = step(*original, 1);
    for (const Copy& copy : copies) {
      SCOPED_TRACE("loaded at token " + std::to_string(copy.from));
      ASSERT_TRUE(step(*copy.sequence, 1) == out) << "it answers otherwise";
      ASSERT_EQ(copy.sequence->least_tokens(), original->least_tokens());
      if (n + 1 == copy.until) expect_same_state(*copy.sequence, *original);
    }
    std::erase_if(copies, [&](const Copy& copy) { return n + 1 == copy.until; });
  }
}

void truncates_anywhere(const Source& source) {
  const Reach far = reach();
  const std::span<const std::int32_t> positions = source.positions();
  for (const std::int32_t held : {far.tokens / 2 + 5, far.tokens + 3}) {
    SCOPED_TRACE(std::to_string(held) + " tokens");
    const Owned original = source.make();
    feed(*original, held - 11, 50);
    feed(*original, 11, 1);
    if (failed()) return;
    const Bytes all = saved(*original);
    const std::int32_t end = original->tokens(), least = original->least_tokens();
    EXPECT_GE(least, 1);
    EXPECT_LE(least, end);
    // Nothing but freed or evicted tokens limits truncate.
    if (source.traits().keeps_all) {
      EXPECT_EQ(least, 1);
    }
    std::vector<std::int32_t> lengths{1, std::max(1, positions.front())};
    for (std::int32_t n = positions.front() + 1; n <= end + 1; ++n) lengths.push_back(n);
    for (const std::int32_t n : lengths) {
      SCOPED_TRACE("cut at " + std::to_string(n) + " of " + std::to_string(end) + ", from " +
                   std::to_string(least) + " on");
      const Owned cut = fork(*original);
      const Status outcome = cut->truncate(n);
      ASSERT_EQ(outcome.has_value(), n >= least || n >= end);
      if (!outcome) {
        EXPECT_EQ(outcome.error().code, ErrorCode::kInvalidArgument);
        EXPECT_EQ(cut->tokens(), end);
        if (n % 4 == 0 || n + 1 == least) expect_same_state(*cut, *original);
        if (failed()) return;
        continue;
      }
      EXPECT_EQ(cut->tokens(), std::min(n, end));
      EXPECT_LE(cut->least_tokens(), std::max(n, 1));
      if (n % far.stride != 0 && n != least && n + 1 < end) continue;
      const Owned copy = fork(*cut);
      Result<Owned> loaded = source.load(saved(*cut));
      ASSERT_TRUE(loaded) << loaded.error().message;
      expect_same_state(**loaded, *cut);
      // The text continues with its next token, if it has one.
      const std::int32_t more =
          std::min(far.ahead, std::int32_t(positions.size()) - tokens_before(source, n));
      for (std::int32_t i = 0; i < more && !failed(); ++i) {
        SCOPED_TRACE(std::to_string(i) + " tokens later");
        const std::vector<float> out = step(*cut, 1);
        ASSERT_TRUE(step(*copy, 1) == out) << "a fork answers otherwise";
        ASSERT_TRUE(step(**loaded, 1) == out) << "a loaded copy answers otherwise";
      }
      if (failed()) return;
      expect_same_state(*copy, *cut);
      expect_same_state(**loaded, *cut);
      if (failed()) return;
    }
    EXPECT_TRUE(saved(*original) == all) << "its forks have changed the original";
  }
}

void splits_alike(const Source& source) {
  if (!source.traits().splits) return;
  const std::int32_t n = reach().tokens;
  const Owned one = source.make();
  feed(*one, n, 1);
  for (const std::int32_t block : {2, 7, 16, 33, 50, n}) {
    SCOPED_TRACE("calls of " + std::to_string(block));
    const Owned other = source.make(), token = fork(*one);
    feed(*other, n, block);
    if (failed()) return;
    EXPECT_EQ(other->tokens(), token->tokens());
    // The same tokens are encoded alike. Ends of raw segments may differ, in layers that free tokens
    // those of others too, and with them the order of a sum.
    const CacheBytes a = other->bytes(), b = token->bytes();
    if (source.traits().keeps_all) {
      EXPECT_EQ(a.coefficients, b.coefficients);
      EXPECT_EQ(a.scales + a.bases + a.sketches, b.scales + b.bases + b.sketches);
    }
    EXPECT_LE(testing::largest_difference(feed(*other, 3, 1), feed(*token, 3, 1)), 1e-5)
        << "answers differ afterwards";
    if (failed()) return;
  }
}

void forks_are_independent(const Source& source) {
  const Reach far = reach();
  for (const std::int32_t held : {10, 37, far.tokens}) {
    SCOPED_TRACE(std::to_string(held) + " tokens");
    Owned original = source.make();
    feed(*original, held, 23);
    if (failed()) return;
    const Bytes before = saved(*original);
    {
      const Owned other = fork(*original);
      expect_same_state(*other, *original);
      // It diverges first, in memory that both share.
      if (other->least_tokens() <= source.positions()[std::size_t(held - 9)]) {
        expect_ok(other->truncate(source.positions()[std::size_t(held - 9)]));
      }
      feed(*other, far.ahead, far.ahead);
      EXPECT_TRUE(saved(*original) == before) << "a fork's steps changed the original";
    }
    EXPECT_TRUE(saved(*original) == before) << "a fork's end changed the original";
    const Owned first = fork(*original), second = fork(*first);
    const std::vector<float> out = feed(*original, far.ahead, 1);
    original.reset();
    EXPECT_TRUE(feed(*second, far.ahead, 1) == out);
    EXPECT_TRUE(feed(*first, far.ahead, 1) == out);
    expect_same_state(*first, *second);
    if (failed()) return;
  }
}

void clears_to_new(const Source& source) {
  const Owned fresh = source.make(), cleared = source.make(), cut = source.make();
  EXPECT_EQ(fresh->tokens(), 0);
  EXPECT_EQ(fresh->least_tokens(), 1);
  expect_ok(fresh->truncate(0));
  feed(*cleared, 90, 40);
  feed(*cut, 90, 1);
  if (failed()) return;
  const Owned copy = fork(*cleared);
  const Bytes before = saved(*copy);
  cleared->clear();
  expect_ok(cut->truncate(0));
  for (Sequence* each : {cleared.get(), cut.get()}) {
    expect_same_state(*each, *fresh);
    const Owned again = source.make();
    EXPECT_TRUE(feed(*each, 70, 35) == feed(*again, 70, 35)) << "answers are not those of a new one";
    expect_same_state(*each, *again);
  }
  EXPECT_TRUE(saved(*copy) == before) << "clearing the original changed a fork";
}

void counts_bytes(const Source& source) {
  const Owned sequence = source.make();
  for (const std::int32_t n : {1, 15, 16, 17, 51, 30}) {
    feed(*sequence, n, 13);
    if (failed()) return;
    const CacheBytes b = sequence->bytes();
    EXPECT_EQ(b.full_rank + b.coefficients + b.scales + b.bases + b.sketches + b.positions, b.total);
    EXPECT_GT(b.total, 0u);
    expect_same_state(*fork(*sequence), *sequence);
    expect_same_state(*value_of(source.load(saved(*sequence))), *sequence);
  }
}

void threads_agree(const Source& source) {
  const std::int32_t n = std::min(reach().tokens, 100);
  const auto walk = [&](const Source& by) {
    const Owned sequence = by.make();
    std::vector<float> out = feed(*sequence, n - 3, n - 3), last = feed(*sequence, 3, 1);
    out.insert(out.end(), last.begin(), last.end());
    return std::pair(std::move(out), saved(*sequence));
  };
  const auto alone = walk(source);
  for (const int threads : {2, 3, 5, 8, 16}) {
    if (threads > source.traits().most_threads || (testing::kSanitized && threads != 3)) continue;
    const auto together = walk(*source.with_threads(threads));
    EXPECT_TRUE(together.first == alone.first) << threads << " threads answer otherwise";
    EXPECT_TRUE(together.second == alone.second) << threads << " threads leave something else";
  }
}

std::span<const NamedSequenceProperty> sequence_properties() {
  static constexpr NamedSequenceProperty kAll[] = {
      {"ContinuesAfterLoading", continues_after_loading},
      {"TruncatesAnywhere", truncates_anywhere},
      {"SplitsAlike", splits_alike},
      {"ForksAreIndependent", forks_are_independent},
      {"ClearsToNew", clears_to_new},
      {"CountsBytes", counts_bytes},
      {"ThreadsAgree", threads_agree},
  };
  return kAll;
}

}  // namespace kvspan::conformance
