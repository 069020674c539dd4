// SPDX-License-Identifier: Apache-2.0
// The server of a program that was built without llama.cpp's (KVSPAN_SERVER).
#include <cstdio>

#include "server/serve.h"

namespace kvspan::server {

int serve(const std::vector<std::string>& /*arguments*/, ServeOptions /*options*/) {
  std::fputs(
      "kvspan serve: this program was built without llama.cpp's server (KVSPAN_SERVER=OFF); "
      "supported: ./run serve, which builds both\n",
      stderr);
  return 2;
}

}  // namespace kvspan::server
