// SPDX-License-Identifier: Apache-2.0
// What machine a measurement was taken on, as far as the system says.
#pragma once

#include <string>
#include <string_view>

namespace kvspan {

struct Machine {
  std::string cpu;     // "Intel(R) Xeon(R) ..", "Arm Neoverse-N1"; "unknown"
  unsigned cores = 0;  // that run at once; 0: unknown
  std::string system;  // "Linux 6.1.0 aarch64"
};
Machine describe_machine();

// The processor's name out of the text of /proc/cpuinfo.
std::string cpu_name(std::string_view cpuinfo);

}  // namespace kvspan
