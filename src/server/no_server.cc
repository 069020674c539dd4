// SPDX-License-Identifier: Apache-2.0
// The server of a program that was built without llama.cpp's (KVSPAN_SERVER).
#include <cstdio>

#include "server/serve.h"

namespace kvspan::server {

int serve(const std::vector<std::string>& /*arguments*/, ServeOptions /*options*/) {
  std::fputs("kvspan serve: this program was built before llama.cpp's server was; supported: ./run serve, which builds "
             "both, or scripts/dependencies.sh and then this program again\n",
             stderr);
  return 2;
}

}  // namespace kvspan::server
