// SPDX-License-Identifier: Apache-2.0
// Every call of the system that writing and reading files and starting threads makes fails once: an error comes back, the
// old or the new file is there, and no descriptor, thread or temporary file stays. The same through the program:
// failing_calls_test.py.
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <system_error>

#include "base/thread_pool.h"
#include "io/atomic_file.h"
#include "io/bounded_folder.h"
#include "kvspan/calibration.h"
#include "llama/calibration_file.h"
#include "llama/gguf_file.h"
#include "llama/threadpool.h"
#include "store/disk_blobs.h"
#include "store/prefix_store.h"
#include "tests/cache/random_calibration.h"
#include "tests/faults/fail_calls.h"
#include "tests/io/temporary_folder.h"
#include "tests/store/fake_cache.h"

namespace kvspan {
namespace {

constexpr const char* kKinds[] = {"write", "fsync", "rename", "create", "mmap", "thread"};

// What a run told of itself.
enum class Told { kDone, kFailed };

// Repeats `run` until no call of the kind fails any more; `check` looks at what each left behind, `prepare` makes what
// it begins with.
void each_call_fails(const std::function<Told()>& run, const std::function<void(Told)>& check = [](Told) {},
                     const std::function<void()>& prepare = [] {}) {
  prepare();
  (void)run();  // what is made once, the first time
  int failures = 0;
  for (const char* const kind : kKinds) {
    for (long at = 1;; ++at) {
      SCOPED_TRACE(fmt::format("{} {}", kind, at));
      prepare();
      const auto descriptors = testing::open_descriptors(), threads = testing::threads();
      kvspan_fail_call(kind, at);
      const Told told = run();
      const bool failed = kvspan_counted_calls() >= at;
      kvspan_fail_call("", 0);
      EXPECT_EQ(testing::open_descriptors(), descriptors);
      EXPECT_EQ(testing::threads(), threads);
      check(told);
      if (::testing::Test::HasFailure()) return;
      if (!failed) {
        EXPECT_EQ(told, Told::kDone);
        break;
      }
      ++failures;
    }
  }
  EXPECT_GT(failures, 0);
}

Told told(const Status& status) {
  EXPECT_TRUE(status || !status.error().message.empty());
  return status ? Told::kDone : Told::kFailed;
}

TEST(Faults, WriteFile) {
  TemporaryFolder folder;
  const std::string path = folder / "file", old(300, 'o'), fresh(70000, 'n');
  std::filesystem::create_symlink("file", folder / "link");
  for (const char* const name : {"file", "link"}) {
    each_call_fails(
        [&] {
          const Status written = write_file(folder / name, fresh);
          EXPECT_TRUE(written || written.error().message.find(path) != std::string::npos);
          return told(written);
        },
        [&](Told told) {
          EXPECT_EQ(text_of(path), told == Told::kDone ? fresh : old);
          EXPECT_EQ(folder.entries(), 2);
        },
        [&] { ASSERT_TRUE(write_file(path, old)); });
  }
}

TEST(Faults, Calibration) {
  TemporaryFolder folder;
  const std::string path = folder / "calibration";
  CacheShape shape;
  shape.layers.resize(2);
  for (LayerShape& layer : shape.layers) {
    layer.query_heads = layer.kv_heads = 1;
    layer.key_dim = layer.value_dim = 8;
    layer.logit_scale = 1.0f;
  }
  const Calibration calibration = testing::random_calibration(shape);
  ASSERT_TRUE(save_calibration(path, calibration));
  const std::string whole = text_of(path);
  each_call_fails([&] { return told(save_calibration(path, calibration)); },
                  [&](Told) {
                    EXPECT_EQ(text_of(path), whole);
                    EXPECT_EQ(folder.entries(), 1);
                  });
}

TEST(Faults, Models) {
  const std::string model = KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf";
  each_call_fails(
      [&] {
        const auto file = GgufFile::open(model);
        if (file) return Told::kDone;
        EXPECT_NE(file.error().message.find(model), std::string::npos);
        return Told::kFailed;
      });
}

TEST(Faults, BoundedFolder) {
  TemporaryFolder folder;
  const BoundedFolder kept(folder / "kept", 1000);
  const std::vector<std::byte> bytes(400, std::byte{7});
  each_call_fails([&] { return told(kept.write("a", bytes)); },
                  [&](Told told) {
                    const auto read = kept.read("a");
                    if (told == Told::kDone || read) {
                      ASSERT_TRUE(read);
                      EXPECT_EQ(*read, bytes);
                    }
                    EXPECT_EQ(kept.files().size(), 1u);
                  });
}

// A store misses what could not be written, and never gives anything else.
TEST(Faults, DiskStore) {
  TemporaryFolder folder;
  std::vector<std::int32_t> tokens(600);
  std::int32_t text = 0;
  testing::FakeCache cache;
  const StoreIdentity identity{"model", "full", "", ""};
  each_call_fails(
      [&] {
        for (std::int32_t& token : tokens) token = text;
        tokens.front() = ++text;
        cache.truncate(0);
        cache.read(tokens);
        auto blobs = DiskBlobs::open(folder / "store", std::uint64_t{1} << 30);
        if (!blobs) return Told::kFailed;
        PrefixStore store(*std::move(blobs), identity);
        return told(store.put(tokens, 1, cache.save()));
      },
      [&](Told told) {
        auto blobs = DiskBlobs::open(folder / "store", std::uint64_t{1} << 30);
        ASSERT_TRUE(blobs);
        PrefixStore store(*std::move(blobs), identity);
        const auto found = store.longest(tokens);
        EXPECT_TRUE(found || told == Told::kFailed);
        EXPECT_TRUE(!found || found->bytes == cache.save().bytes);
        EXPECT_EQ(store.statistics().damaged, 0u);
        for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
          EXPECT_EQ(entry.path().extension() == ".tmp", false) << entry.path();
        }
      });
}

TEST(Faults, Threads) {
  each_call_fails(
      [] {
        try {
          ThreadPool pool(4);
          int ran = 0;
          std::mutex mutex;
          pool.run([&](Team&) {
            const std::lock_guard lock(mutex);
            ++ran;
          });
          EXPECT_EQ(ran, 4);
          return Told::kDone;
        } catch (const std::system_error& error) {
          EXPECT_NE(std::string(error.what()), "");
          return Told::kFailed;
        }
      });
  // All but the last: ggml would end the program.
  for (long at = 1; at <= 3; ++at) {
    const auto threads = testing::threads();
    kvspan_fail_call("thread", at);
    EXPECT_EQ(make_threadpool(4), nullptr) << at;
    kvspan_fail_call("", 0);
    EXPECT_EQ(testing::threads(), threads);
  }
  EXPECT_NE(make_threadpool(4), nullptr);
}

}  // namespace
}  // namespace kvspan
