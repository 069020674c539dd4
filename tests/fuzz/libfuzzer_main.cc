// SPDX-License-Identifier: Apache-2.0
// One target as a libFuzzer program. With KVSPAN_FUZZ_SEEDS it writes the target's seeds to that folder, prints how
// long an input may be, and ends.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/target.h"

namespace kvspan::fuzz {
extern const Target KVSPAN_FUZZ_TARGET;
}

namespace {

const kvspan::fuzz::Target& target = kvspan::fuzz::KVSPAN_FUZZ_TARGET;
std::uint64_t runs = 0, accepted = 0;

void write_seeds(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const kvspan::fuzz::Bytes& seed : target.seeds()) {
    std::ofstream file(folder / fmt::format("seed{:04}", number++), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    if (!file.flush()) std::exit(1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (const char* const folder = std::getenv("KVSPAN_FUZZ_SEEDS")) {
    write_seeds(folder);
    fmt::print("{}\n", target.longest);
    std::exit(0);
  }
  std::atexit([] {
    fmt::print(stderr, "{}: {} inputs, {} of them accepted\n", target.name, runs, accepted);
  });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size > target.longest) return -1;
  ++runs;
  try {
    accepted += target.run({bytes, size});
  } catch (const std::exception& broken) {  // Broken, and what kvspan should not have thrown
    fmt::print(stderr, "{}: {}\n", target.name, broken.what());
    std::abort();
  }
  return 0;
}
