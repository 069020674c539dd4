// SPDX-License-Identifier: Apache-2.0
// The kinds of places that a store can be in, each empty and of its own.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "store/disk_blobs.h"
#include "store/memory_blobs.h"
#include "store/redis_blobs.h"
#include "tests/io/temporary_folder.h"
#include "tests/store/redis_server.h"

namespace kvspan::testing {

// A test that is made with the name of a place.
class PlaceTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() != "redis") return;
    ASSERT_TRUE(RedisServer::installed()) << "redis-server is missing; scripts/setup.sh installs it";
    redis_ = std::make_unique<RedisServer>();
  }
  // All that a test opens are the same place; memory is one program's.
  std::unique_ptr<Blobs> open(std::uint64_t limit = std::uint64_t{1} << 30) {
    if (GetParam() == "memory") return std::make_unique<MemoryBlobs>(limit);
    if (GetParam() == "disk") return DiskBlobs::open(folder_ / "store", limit).value();
    return std::make_unique<RedisBlobs>(redis_->address(), 3600);
  }

  TemporaryFolder folder_;
  std::unique_ptr<RedisServer> redis_;
};

inline std::string place_name(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

}  // namespace kvspan::testing
