// SPDX-License-Identifier: Apache-2.0
// Every place keeps what is put, forgets the longest unused first, and stays within its limit; files with
// several programs at once, one of which is killed; Redis that is away, slow, full or not Redis.
#include "store/blobs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/random.h"
#include "io/sha256.h"
#include "store/open_store.h"
#include "tests/store/places.h"

namespace kvspan::testing {
namespace {

std::string key_of(std::uint64_t number) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(&number, 1)));
  return hash.finish();
}

// Bytes that tell whether they are whole: they follow from the number.
std::vector<std::byte> bytes_of(std::uint64_t number, std::size_t size) {
  Random random(number);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.bits());
  return bytes;
}

Status put_one(Blobs& blobs, std::uint64_t number, std::size_t size) {
  const std::vector<std::byte> bytes = bytes_of(number, size);
  const BlobView blob{key_of(number), bytes};
  return blobs.put(std::span(&blob, 1));
}

std::optional<std::vector<std::byte>> get_one(Blobs& blobs, std::uint64_t number) {
  const std::string key = key_of(number);
  auto found = blobs.get(std::span(&key, 1), kMostBlobBytes);
  return found ? found->front() : std::nullopt;
}

class BlobsTest : public PlaceTest {};
class BoundedBlobsTest : public PlaceTest {};  // places that forget by a limit of their own; Redis has its settings

TEST_P(BlobsTest, KeepsReplacesAndRemoves) {
  const auto blobs = open();
  const std::vector<std::string> keys = {key_of(1), key_of(2), key_of(3)};
  EXPECT_EQ(blobs->has(keys).value(), (std::vector<bool>{false, false, false}));
  ASSERT_TRUE(put_one(*blobs, 1, 0));
  ASSERT_TRUE(put_one(*blobs, 3, 5'000'000));
  EXPECT_EQ(blobs->has(keys).value(), (std::vector<bool>{true, false, true}));
  const auto found = blobs->get(keys, 5'000'000).value();
  EXPECT_EQ(found[0], bytes_of(1, 0));
  EXPECT_FALSE(found[1]);
  EXPECT_EQ(found[2], bytes_of(3, 5'000'000));
  ASSERT_TRUE(put_one(*blobs, 3, 10));
  EXPECT_EQ(get_one(*blobs, 3), bytes_of(3, 10));
  blobs->remove(std::span(keys).last(1));
  EXPECT_FALSE(get_one(*blobs, 3));
  EXPECT_TRUE(get_one(*blobs, 1));
}

TEST_P(BlobsTest, AnEntryThatIsTooLongCostsNoMoreThanOneThatIsNot) {
  const auto blobs = open();
  ASSERT_TRUE(put_one(*blobs, 1, 1'000'000));
  const std::string key = key_of(1);
  EXPECT_EQ(blobs->get(std::span(&key, 1), 1'000'000).value().front(), bytes_of(1, 1'000'000));
  for (const std::size_t most : {999'999u, 1000u}) {
    const auto found = blobs->get(std::span(&key, 1), most).value().front();
    ASSERT_TRUE(found) << "it is there";
    EXPECT_LE(found->size(), most + 1);
    EXPECT_NE(found->size(), most) << "and not taken for a whole one";
  }
}

// 200 entries of 100 kB in 4 MB: what is used again and again stays, the limit holds.
TEST_P(BoundedBlobsTest, ForgetsTheLongestUnusedFirst) {
  constexpr std::uint64_t kLimit = 4'000'000;
  const auto blobs = open(kLimit);
  for (std::uint64_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(put_one(*blobs, i, 100'000));
    ASSERT_TRUE(get_one(*blobs, 0)) << i;
    EXPECT_LE(blobs->bytes(), kLimit);
  }
  EXPECT_EQ(get_one(*blobs, 199), bytes_of(199, 100'000));
  EXPECT_FALSE(get_one(*blobs, 1));
  EXPECT_FALSE(put_one(*blobs, 1000, kLimit + 1)) << "never more than fits";
  if (GetParam() != "disk") return;
  std::uint64_t sum = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder_.path())) {
    if (file.is_regular_file()) sum += file.file_size();
  }
  EXPECT_LE(sum, kLimit);
}

INSTANTIATE_TEST_SUITE_P(Places, BoundedBlobsTest, ::testing::Values("memory", "disk"), place_name);
INSTANTIATE_TEST_SUITE_P(Places, BlobsTest, ::testing::Values("memory", "disk", "redis"),
                         place_name);

// A child that puts entries without end, until it is killed.
pid_t start_writer(const std::string& folder, std::uint64_t limit, std::uint64_t first) {
  const pid_t child = fork();
  if (child != 0) return child;
  const auto blobs = DiskBlobs::open(folder, limit);
  if (!blobs) _exit(1);
  for (std::uint64_t i = 0;; ++i) {
    if (!put_one(**blobs, first + i % 1000, 20'000 + i % 7)) _exit(2);
  }
}

TEST(DiskBlobs, SeveralProgramsAndOneKilledLeaveWholeFilesWithinTheLimit) {
  TemporaryFolder folder;
  constexpr std::uint64_t kLimit = 3'000'000;
  const auto blobs = DiskBlobs::open(folder / "store", kLimit).value();
  for (int round = 0; round < 5; ++round) {
    const pid_t children[2] = {start_writer(folder / "store", kLimit, 0),
                               start_writer(folder / "store", kLimit, 500)};
    std::uint64_t met = 0;
    Random random(static_cast<std::uint64_t>(round));
    // Until they have certainly written, and for some while.
    for (int i = 0; i < 2000 || (met < 50 && i < 1'000'000); ++i) {
      const std::uint64_t number = random.below(1500);
      const auto found = get_one(*blobs, number);
      if (!found) continue;
      ++met;
      ASSERT_GE(found->size(), 20'000u);
      ASSERT_EQ(*found, bytes_of(number, found->size()));
    }
    for (const pid_t child : children) {
      kill(child, SIGKILL);
      int status = 0;
      waitpid(child, &status, 0);
      EXPECT_TRUE(WIFSIGNALED(status)) << "it was still writing";
    }
  }
  // Files under their final names are whole; what was being written is no entry.
  std::uint64_t sum = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (!file.is_regular_file() || file.path().extension() != ".kv") continue;
    sum += file.file_size();
    EXPECT_GE(file.file_size(), 20'000u);
  }
  EXPECT_GT(sum, 0u);
  EXPECT_LE(sum, kLimit + 3 * kLimit / 10) << "a tenth for each program";
}

TEST(DiskBlobs, WhatAKilledProgramLeftGoesAndNothingElse) {
  TemporaryFolder folder;
  std::filesystem::create_directories(folder / "store/ab");
  const std::string left = folder / ("store/ab/" + key_of(1) + ".kv.123-4.tmp");
  const std::string fresh = folder / ("store/ab/" + key_of(2) + ".kv.123-5.tmp");
  const std::string foreign = folder / "store/notes.tmp";
  for (const std::string& path : {left, fresh, foreign}) std::ofstream(path) << "x";
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  std::filesystem::last_write_time(left, old);
  std::filesystem::last_write_time(foreign, old);
  ASSERT_TRUE(DiskBlobs::open(folder / "store", 1 << 20));
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_TRUE(std::filesystem::exists(fresh)) << "somebody may be writing it";
  EXPECT_TRUE(std::filesystem::exists(foreign));
}

TEST(DiskBlobs, AFolderThatCannotBeWrittenIsSaidAtOnce) {
  TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  const auto blobs = DiskBlobs::open(folder / "file", 1 << 20);
  ASSERT_FALSE(blobs);
  EXPECT_NE(blobs.error().message.find("file"), std::string::npos);
}

// /dev/full answers every write with "no space left": the same as a full disk. A folder cannot be made
// there, so the entry's own file is it.
TEST(DiskBlobs, AFullDiskFailsThePutAndLeavesNoEntry) {
  TemporaryFolder folder;
  const auto blobs = DiskBlobs::open(folder / "store", 1 << 20).value();
  const std::string key = key_of(1);
  std::filesystem::create_directories(folder / ("store/" + key.substr(0, 2)));
  std::filesystem::create_symlink("/dev/full",
                                  folder / ("store/" + key.substr(0, 2) + "/" + key + ".kv"));
  EXPECT_FALSE(put_one(*blobs, 1, 1000));
  EXPECT_TRUE(put_one(*blobs, 2, 1000)) << "and the store goes on";
}

class RedisTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(RedisServer::installed()) << "redis-server is missing; scripts/setup.sh installs it";
  }
};

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST_F(RedisTest, ComesBackAfterItWasKilled) {
  RedisServer server;
  RedisLimits limits;
  limits.pause_ms = 1;
  RedisBlobs blobs(server.address(), 100, limits);
  ASSERT_TRUE(put_one(blobs, 1, 1000));
  ASSERT_EQ(get_one(blobs, 1), bytes_of(1, 1000));
  server.kill_now();
  EXPECT_FALSE(get_one(blobs, 1));
  EXPECT_FALSE(put_one(blobs, 1, 1000));
  server.start();
  bool back = false;
  for (int i = 0; i < 1000 && !back; ++i) {
    back = put_one(blobs, 1, 1000).has_value();
    if (!back) usleep(5000);
  }
  EXPECT_TRUE(back);
  EXPECT_EQ(get_one(blobs, 1), bytes_of(1, 1000));
}

TEST_F(RedisTest, WhileItIsAwayNothingIsTried) {
  const int port = Listener().port;
  RedisAddress nowhere;
  nowhere.host = "127.0.0.1";
  nowhere.port = port;
  RedisLimits limits;
  limits.pause_ms = 60'000;
  RedisLink link(nowhere, limits);
  const std::vector<RedisCommand> ping = {{"PING"}};
  const auto first = link.call(ping), second = link.call(ping);
  ASSERT_FALSE(first);
  ASSERT_FALSE(second);
  EXPECT_NE(first.error().message.find("cannot reach"), std::string::npos);
  EXPECT_NE(second.error().message.find("tried again in"), std::string::npos);
}

TEST_F(RedisTest, EntriesLiveAsLongAsTheyAreUsed) {
  RedisServer server;
  RedisBlobs blobs(server.address(), 500);
  ASSERT_TRUE(put_one(blobs, 1, 10));
  RedisLink link(server.address());
  const std::string name = "kvspan:" + key_of(1);
  const auto ttl = [&] {
    const std::vector<RedisCommand> ask = {{"TTL", name}};
    return link.call(ask).value().front().number;
  };
  EXPECT_GT(ttl(), 400);
  const std::vector<RedisCommand> sooner = {{"EXPIRE", name, "50"}};
  ASSERT_TRUE(link.call(sooner));
  EXPECT_LE(ttl(), 50);
  ASSERT_TRUE(get_one(blobs, 1));
  EXPECT_GT(ttl(), 400);
}

TEST_F(RedisTest, AFullServerRefusesAndGoesOn) {
  RedisServer server({"--maxmemory", "4mb", "--maxmemory-policy", "noeviction"});
  RedisBlobs blobs(server.address(), 100);
  ASSERT_TRUE(put_one(blobs, 1, 1000));
  Status full;
  for (std::uint64_t i = 10; i < 30 && full; ++i) full = put_one(blobs, i, 500'000);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::kOutOfBudget);
  EXPECT_EQ(get_one(blobs, 1), bytes_of(1, 1000));
}

TEST_F(RedisTest, ALimitedServerForgetsByItself) {
  RedisServer server({"--maxmemory", "6mb", "--maxmemory-policy", "allkeys-lru"});
  RedisBlobs blobs(server.address(), 100);
  for (std::uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(put_one(blobs, i, 500'000)) << i;
  EXPECT_EQ(get_one(blobs, 39), bytes_of(39, 500'000));
}

TEST_F(RedisTest, PasswordsAndDatabases) {
  RedisServer server({"--requirepass", "se:cr@t"});
  RedisAddress address = server.address();
  EXPECT_FALSE(RedisLink(address).call(std::vector<RedisCommand>{{"PING"}}));
  const auto url = fmt::format("redis://default:se%3acr%40t@127.0.0.1:{}/3", address.port);
  RedisBlobs blobs(RedisAddress::parse(url).value(), 100);
  ASSERT_TRUE(put_one(blobs, 1, 10));
  RedisAddress first = RedisAddress::parse(url).value();
  EXPECT_EQ(first.text().find("cr"), std::string::npos) << "the password is not shown";
  first.database = 0;
  RedisBlobs elsewhere(first, 100);
  EXPECT_FALSE(get_one(elsewhere, 1));
}

// Each of these must end by itself. The limits are times that were asked for; the test only holds that
// the call does not take several times as long, on a machine however busy.
TEST(NotRedis, CostsNoMoreThanItsTime) {
  using Behaviour = std::function<void(int, const std::atomic<bool>&)>;
  const auto until_end = [](const std::atomic<bool>& ends, const auto& step) {
    while (!ends && step()) usleep(2000);
  };
  const std::vector<std::pair<const char*, Behaviour>> others = {
      {"silent",
       [&](int, const std::atomic<bool>& ends) { until_end(ends, [] { return true; }); }},
      {"one byte at a time",
       [&](int to, const std::atomic<bool>& ends) {
         const std::string head = "$100000000\r\n";
         (void)!::send(to, head.data(), head.size(), MSG_NOSIGNAL);
         until_end(ends, [&] { return ::send(to, "x", 1, MSG_NOSIGNAL) == 1; });
       }},
      {"hangs up", [](int, const std::atomic<bool>&) {}},
      {"another protocol",
       [](int to, const std::atomic<bool>&) {
         const std::string text = "HTTP/1.1 400 Bad Request\r\n\r\n";
         (void)!::send(to, text.data(), text.size(), MSG_NOSIGNAL);
       }},
      {"a number for bytes",
       [](int to, const std::atomic<bool>&) { (void)!::send(to, ":1\r\n", 4, MSG_NOSIGNAL); }},
      {"a list without end",
       [](int to, const std::atomic<bool>&) {
         const std::string text = "*1000000\r\n*1000000\r\n";
         (void)!::send(to, text.data(), text.size(), MSG_NOSIGNAL);
       }},
      {"a negative length",
       [](int to, const std::atomic<bool>&) { (void)!::send(to, "$-7\r\n", 5, MSG_NOSIGNAL); }},
  };
  for (const auto& [name, behave] : others) {
    OtherServer server(behave);
    RedisLimits limits;
    limits.call_ms = 200;
    RedisBlobs blobs(server.address(), 100, limits);
    const double seconds = seconds_of([&] {
      EXPECT_FALSE(get_one(blobs, 1)) << name;
      EXPECT_FALSE(get_one(blobs, 2)) << name;  // pausing
    });
    EXPECT_LT(seconds, 20.0) << name;
  }
}

// A reply that announces more than is stored is refused by its first line, before there is memory
// for it or time is spent on it.
TEST(NotRedis, ThatAnnouncesTooMuchIsRefusedAtOnce) {
  const std::string flood(100'000, 'x');
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += "*1\r\n";
  for (const auto& [reply, says] : std::vector<std::pair<std::string, std::string>>{
           {"*2147483647\r\n", "a reply of kind 0x2a"},
           {nested, "a reply of kind 0x2a"},
           {"%3\r\n", "a reply of kind 0x25"},
           {"$9223372036854775807\r\n" + flood, "9223372036854775807 bytes where at most"},
           {"$99999999999999999999999\r\n", "bytes where at most"},
           {"$1002\r\n" + flood, "1002 bytes where at most 1001"},
           {"$-5\r\n", "-5 bytes"},
           {"+" + flood, "a line without end"}}) {
    OtherServer server([&](int to, const std::atomic<bool>& ends) {
      (void)!::send(to, reply.data(), reply.size(), MSG_NOSIGNAL);
      while (!ends) usleep(2000);  // and waits
    });
    RedisLimits limits;
    limits.call_ms = 600'000;  // would be waited for
    RedisBlobs blobs(server.address(), 100, limits);
    const std::string key = key_of(1);
    const auto found = blobs.get(std::span(&key, 1), 1000);
    ASSERT_FALSE(found) << says;
    EXPECT_EQ(found.error().code, ErrorCode::kCorruptData) << found.error().message;
    EXPECT_NE(found.error().message.find(says), std::string::npos) << found.error().message;
  }
}

TEST(NotRedis, ThatSendsAnythingIsNeverBelieved) {
  const std::string header = "+-:$*\r\n0123456789";
  std::atomic<std::uint64_t> seed = 1;
  OtherServer server([&](int to, const std::atomic<bool>&) {
    Random random(seed++);
    std::string text;
    for (std::uint64_t i = 0, n = random.below(200); i < n; ++i) {
      text += header[random.below(header.size())];
    }
    (void)!::send(to, text.data(), text.size(), MSG_NOSIGNAL);
  });
  for (int i = 0; i < 200; ++i) {
    RedisLimits limits;
    limits.call_ms = 1000;
    RedisBlobs blobs(server.address(), 100, limits);
    const auto found = get_one(blobs, 1);
    if (found) {
      EXPECT_LT(found->size(), 200u);
    }
  }
}

TEST(OpenBlobs, SaysWhatIsAllowed) {
  TemporaryFolder folder;
  EXPECT_TRUE(open_blobs("memory:64MiB"));
  EXPECT_TRUE(open_blobs("disk:" + (folder / "a") + ":2GB"));
  EXPECT_TRUE(open_blobs("disk:" + (folder / "with:colon/b")));
  EXPECT_TRUE(open_blobs("redis://localhost"));
  EXPECT_TRUE(open_blobs("redis://[::1]:7000/2"));
  for (const std::string wrong :
       {"", "memory", "memory:", "memory:much", "memory:1kB", "disk:", "disk::1GiB", "disk:/x:12parsecs",
        "redis://", "redis://:6379", "redis://host:port", "redis://host:70000", "redis://host/x",
        "redis://a%zz@host", "rediss://host", "http://host", "redis://[::1"}) {
    const auto opened = open_blobs(wrong);
    ASSERT_FALSE(opened) << wrong;
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument) << wrong;
    EXPECT_FALSE(opened.error().message.empty());
  }
  EXPECT_FALSE(open_blobs("memory:64MiB", 0));
}

}  // namespace
}  // namespace kvspan::testing
