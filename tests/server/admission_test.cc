// SPDX-License-Identifier: Apache-2.0
#include "server/admission.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace kvspan::server {
namespace {

TEST(Admission, GivesBytesBackWhenTheTicketEnds) {
  Admission admission(100, 0.0);
  auto first = admission.admit(60, nullptr);
  ASSERT_TRUE(first);
  EXPECT_EQ(admission.figures().reserved_bytes, 60u);
  const auto second = admission.admit(60, nullptr);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kOutOfBudget);
  EXPECT_NE(second.error().message.find("needs 60 bytes"), std::string::npos) << second.error().message;
  first->reset();
  EXPECT_EQ(admission.figures().reserved_bytes, 0u);
  EXPECT_TRUE(admission.admit(100, nullptr));
  EXPECT_EQ(admission.figures().refused, 1u);
}

TEST(Admission, RefusesAtOnceWhatNeverFits) {
  Admission admission(100, 3600.0);
  EXPECT_FALSE(admission.admit(101, nullptr));
}

TEST(Admission, LeavesTheQueueWithAClientThatHasGone) {
  Admission admission(100, 3600.0);
  const auto first = admission.admit(80, nullptr);
  const auto second = admission.admit(80, [] { return true; });
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(admission.figures().waiting, 0u);
}

TEST(Admission, NeverExceedsTheBudgetAndLetsEverybodyInAtLast) {
  Admission admission(100, 3600.0);
  std::atomic<int> inside{0}, most{0}, done{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 12; ++i) {
    clients.emplace_back([&] {
      auto ticket = admission.admit(30, nullptr);
      ASSERT_TRUE(ticket);
      const int now = ++inside;
      for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
      }
      std::this_thread::yield();
      --inside;
      ++done;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(done, 12);
  EXPECT_LE(most, 3);
  EXPECT_EQ(admission.figures().reserved_bytes, 0u);
}

TEST(Admission, ASmallRequestDoesNotOvertakeALargeOne) {
  Admission admission(100, 3600.0);
  auto first = admission.admit(90, nullptr);
  ASSERT_TRUE(first);
  std::atomic<bool> large_is_in{false};
  std::thread large([&] {
    const auto ticket = admission.admit(100, nullptr);
    ASSERT_TRUE(ticket);
    large_is_in = true;
  });
  while (admission.figures().waiting < 1) std::this_thread::yield();
  std::thread small([&] {
    const auto ticket = admission.admit(10, nullptr);
    ASSERT_TRUE(ticket);
    EXPECT_TRUE(large_is_in);
  });
  while (admission.figures().waiting < 2) std::this_thread::yield();
  first->reset();
  large.join();
  small.join();
}

}  // namespace
}  // namespace kvspan::server
