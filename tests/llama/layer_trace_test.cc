// SPDX-License-Identifier: Apache-2.0
// What is found in a model's graph, against the model's file.
#include "llama/layer_trace.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "llama/dequantize.h"
#include "llama/engine.h"
#include "llama/gguf_file.h"

namespace kvspan::testing {
namespace layer_trace_test {

std::string data(const std::string& name) {
  return std::string(KVSPAN_SOURCE_DIR "/data/") + name;
}
std::unique_ptr<Engine> load(const std::string& name) {
  auto engine = Engine::load(data(name), {1, 48});
  EXPECT_TRUE(engine) << engine.error().message;
  return std::move(*engine);
}

// The norm before the layer's feed-forward part, where a norm follows attention; else none is asked for.
TEST(LayerTrace, FindsTheNormThatReadsTheStreamNext) {
  const char* name = "fixtures/gemma3.gguf";
  const auto engine = load(name);
  const auto file = GgufFile::open(data(name)).value();
  for (std::size_t i = 0; i < engine->cache_shape().layers.size(); ++i) {
    const auto projection = engine->output_projection(static_cast<int>(i));
    ASSERT_TRUE(projection) << projection.error().message;
    const auto hidden = static_cast<std::int64_t>(engine->info().hidden);
    const auto norm = file->require_tensor("blk." + std::to_string(i) + ".ffn_norm.weight", hidden, 1);
    ASSERT_TRUE(norm) << norm.error().message;
    EXPECT_EQ(projection->reader, floats_of(*norm)) << "layer " << i;
  }
  for (const char* other : {"fixtures/llama.gguf", "fixtures/gptneox.gguf"}) {
    const auto projection = load(other)->output_projection(0);
    ASSERT_TRUE(projection) << projection.error().message;
    EXPECT_TRUE(projection->reader.empty()) << other;
  }
}

}  // namespace layer_trace_test
}  // namespace kvspan::testing
