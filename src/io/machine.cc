// SPDX-License-Identifier: Apache-2.0
#include "io/machine.h"

#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <thread>

namespace kvspan {
namespace {

// Arm gives numbers only: parts of implementer 0x41 that servers and boards have.
struct Part {
  std::string_view number, name;
};
constexpr Part kArmParts[] = {{"0xd08", "Cortex-A72"},  {"0xd0b", "Cortex-A76"},
                              {"0xd0c", "Neoverse-N1"}, {"0xd40", "Neoverse-V1"},
                              {"0xd49", "Neoverse-N2"}, {"0xd4f", "Neoverse-V2"},
                              {"0xd84", "Neoverse-V3"}, {"0xd8e", "Neoverse-N3"}};

// The value of the first line "key : value"; empty without one.
std::string_view value_of(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    const std::size_t colon = line.find(':');
    if (line.starts_with(key) && colon != std::string_view::npos) {
      const std::size_t first = line.find_first_not_of(" \t", colon + 1);
      return first == std::string_view::npos ? std::string_view() : line.substr(first);
    }
    at = end + 1;
  }
  return {};
}

}  // namespace

std::string cpu_name(std::string_view cpuinfo) {
  if (const auto name = value_of(cpuinfo, "model name"); !name.empty()) return std::string(name);
  const std::string_view part = value_of(cpuinfo, "CPU part");
  if (part.empty() || value_of(cpuinfo, "CPU implementer") != "0x41") return "unknown";
  for (const Part& known : kArmParts) {
    if (known.number == part) return "Arm " + std::string(known.name);
  }
  return "Arm part " + std::string(part);
}

Machine describe_machine() {
  Machine machine;
  std::ifstream file("/proc/cpuinfo");
  machine.cpu = cpu_name(std::string(std::istreambuf_iterator<char>(file), {}));
  machine.cores = std::thread::hardware_concurrency();
  utsname names{};
  if (uname(&names) == 0) {
    machine.system = std::string(names.sysname) + " " + names.release + " " + names.machine;
  }
  return machine;
}

}  // namespace kvspan
