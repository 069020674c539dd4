// SPDX-License-Identifier: Apache-2.0
// Structures of the C interface from callers that were compiled with older and newer headers.
#include "api/c_structs.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

namespace kvspan::c_api {
namespace c_structs_test {

// `size` bytes, all set, and no byte more, so that reading beyond them is found.
std::unique_ptr<std::byte[]> filled(std::size_t size) {
  std::unique_ptr<std::byte[]> bytes(new std::byte[size]);
  std::memset(bytes.get(), 0x5a, size);
  std::memcpy(bytes.get(), &size, sizeof size);
  return bytes;
}

template <class T>
class CStructs : public ::testing::Test {};
using Structures =
    ::testing::Types<kvspan_layer, kvspan_factory_options, kvspan_part, kvspan_bytes,
                     kvspan_moments_options, kvspan_cuda_options, kvspan_cuda_rows, kvspan_cuda_out,
                     kvspan_cuda_step>;
TYPED_TEST_SUITE(CStructs, Structures);

TYPED_TEST(CStructs, FieldsThatAnOlderCallerLacksAreZero) {
  for (std::size_t size = sizeof(std::size_t); size <= sizeof(TypeParam); ++size) {
    const auto given = filled(size);
    const Result<TypeParam> read = read_struct<TypeParam>(given.get(), "it");
    ASSERT_EQ(read.has_value(), size >= kFirstSize<TypeParam>) << size;
    if (!read) {
      EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument);
      EXPECT_EQ(read.error().message.find("it: struct_size=" + std::to_string(size)), 0u);
      continue;
    }
    std::byte expected[sizeof(TypeParam)] = {};
    std::memcpy(expected, given.get(), size);
    EXPECT_EQ(std::memcmp(&*read, expected, sizeof expected), 0) << size;
  }
}

TYPED_TEST(CStructs, FieldsThatTheLibraryDoesNotKnowAreZeroOrRefused) {
  constexpr std::size_t kSize = sizeof(TypeParam) + 24;
  for (std::size_t set = sizeof(TypeParam); set <= kSize; ++set) {
    const auto given = filled(kSize);
    std::memset(given.get() + sizeof(TypeParam), 0, kSize - sizeof(TypeParam));
    if (set < kSize) given[set] = std::byte{1};
    const Result<TypeParam> read = read_struct<TypeParam>(given.get(), "it");
    ASSERT_EQ(read.has_value(), set == kSize) << set;
    if (read) continue;
    EXPECT_EQ(read.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(read.error().message.find("byte " + std::to_string(set)), std::string::npos);
  }
  // A size that nobody has set.
  const auto given = filled(sizeof(TypeParam));
  const std::size_t size = kMostStructBytes + 1;
  std::memcpy(given.get(), &size, sizeof size);
  EXPECT_FALSE(read_struct<TypeParam>(given.get(), "it"));
}

TYPED_TEST(CStructs, ElementsOfAnArrayLieAsFarApartAsTheyAreLong) {
  for (const std::size_t size : {kFirstSize<TypeParam>, sizeof(TypeParam), sizeof(TypeParam) + 3}) {
    std::unique_ptr<std::byte[]> three(new std::byte[3 * size]());
    for (std::size_t i = 0; i < 3; ++i) {
      std::memset(three.get() + i * size, 0x11 * (int(i) + 1), std::min(size, sizeof(TypeParam)));
      std::memcpy(three.get() + i * size, &size, sizeof size);
    }
    const auto read = read_structs<TypeParam>(three.get(), 3, "they").value();
    for (std::size_t i = 0; i < 3; ++i) {
      std::byte expected[sizeof(TypeParam)] = {};
      std::memcpy(expected, three.get() + i * size, std::min(size, sizeof expected));
      EXPECT_EQ(std::memcmp(&read[i], expected, sizeof expected), 0) << size;
    }
    const std::size_t other = sizeof(TypeParam);
    if (size <= other) continue;
    std::memcpy(three.get() + size, &other, sizeof other);
    const auto refused = read_structs<TypeParam>(three.get(), 3, "they");
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("of element 1"), std::string::npos);
  }
}

TYPED_TEST(CStructs, AsManyFieldsAsACallerHasAreWritten) {
  TypeParam fields;
  std::memset(static_cast<void*>(&fields), 0x22, sizeof fields);
  for (std::size_t size = kFirstSize<TypeParam>; size <= sizeof(TypeParam) + 16; ++size) {
    const auto to = filled(size);
    ASSERT_TRUE(write_struct(fields, reinterpret_cast<TypeParam*>(to.get()), "it"));
    std::vector<std::byte> expected(size);
    std::memset(expected.data(), 0x22, std::min(size, sizeof fields));
    std::memcpy(expected.data(), &size, sizeof size);
    EXPECT_EQ(std::memcmp(to.get(), expected.data(), size), 0) << size;
  }
}

}  // namespace c_structs_test
}  // namespace kvspan::c_api
