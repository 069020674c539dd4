// SPDX-License-Identifier: Apache-2.0
// The program kvspan.
#include <exception>
#include <new>

#include "base/large_blocks.h"
#include "cli/program.h"

int main(int argc, char** argv) {
  kvspan::keep_large_blocks_apart();
  try {
    return kvspan::cli::run_program(argc, argv);
  } catch (const std::bad_alloc&) {
    kvspan::cli::print_error("out of memory");
  } catch (const std::exception& failure) {
    kvspan::cli::print_error(std::string("unexpected failure: ") + failure.what());
  }
  return 1;
}
