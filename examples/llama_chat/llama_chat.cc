// SPDX-License-Identifier: Apache-2.0
// A chat on stock libllama with kvspan's caches: llama_chat MODEL.gguf [RECIPE [THREADS]]
// Lines of standard input are the user's turns. What differs from a chat without kvspan is marked.
#include <kvspan/llama.h>  // kvspan
#include <llama.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: llama_chat MODEL.gguf [RECIPE [THREADS]]\n"), 2;
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) return std::fprintf(stderr, "cannot load %s\n", argv[1]), 1;
  const llama_vocab* vocab = llama_model_get_vocab(model);

  llama_context_params params = llama_context_default_params();
  params.n_ctx = 8192;
  params.n_threads = params.n_threads_batch = argc > 3 ? std::atoi(argv[3]) : int(std::thread::hardware_concurrency());
  auto made = kvspan::LlamaCaches::create(  // kvspan
      model, params, {.recipe = argc > 2 ? argv[2] : "bands:calib=online", .model_path = argv[1]});
  if (!made) return std::fprintf(stderr, "%s\n", made.error().message.c_str()), 1;
  kvspan::LlamaCaches& caches = **made;

  llama_sampler* sampler = llama_sampler_chain_init(llama_sampler_chain_default_params());
  llama_sampler_chain_add(sampler, llama_sampler_init_greedy());
  const char* pattern = llama_model_chat_template(model, nullptr);
  for (std::string line; std::getline(std::cin, line);) {
    if (pattern != nullptr) {  // the turn as the model expects it; earlier turns are in the cache
      const llama_chat_message turn{"user", line.c_str()};
      std::vector<char> text(line.size() + 1024);
      const int n = llama_chat_apply_template(pattern, &turn, 1, true, text.data(), int(text.size()));
      if (n > 0) line.assign(text.data(), std::size_t(n));
    }
    std::vector<llama_token> tokens(line.size() + 8);
    tokens.resize(std::size_t(llama_tokenize(vocab, line.data(), int(line.size()), tokens.data(),
                                             int(tokens.size()), caches.tokens(0) == 0, true)));
    for (int answered = 0; answered < 256; ++answered) {
      for (std::size_t done = 0; done < tokens.size(); done += 512) {
        const int count = int(std::min<std::size_t>(512, tokens.size() - done));
        auto read = caches.decode(llama_batch_get_one(tokens.data() + done, count));  // kvspan
        if (!read) return std::fprintf(stderr, "%s\n", read.error().message.c_str()), 1;
      }
      const llama_token next = llama_sampler_sample(sampler, caches.context(), -1);
      if (llama_vocab_is_eog(vocab, next)) break;
      char piece[128];
      const int n = llama_token_to_piece(vocab, next, piece, sizeof piece, 0, false);
      std::fwrite(piece, 1, std::size_t(n > 0 ? n : 0), stdout);
      std::fflush(stdout);
      tokens.assign(1, next);
    }
    std::printf("\n[%d tokens in %zu bytes, %s]\n", caches.tokens(0), caches.bytes().total,  // kvspan
                caches.recipe().c_str());
  }
  llama_sampler_free(sampler);
  made->reset();  // kvspan: before the model
  llama_model_free(model);
}
