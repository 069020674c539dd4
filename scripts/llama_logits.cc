// SPDX-License-Identifier: Apache-2.0
// Prints how far llama.cpp's own logits lie from those of a fixture (data/fixtures/README.md has
// the layout of .logits). Keys and values in f32, no flash attention, so that only arithmetic
// differs. Usage: llama_logits MODEL.gguf MODEL.logits [FIRST_N]   compare the first N positions
// (default: all)
//        llama_logits --ids MODEL.gguf TEXTFILE           print the token ids of a text
//        llama_logits --greedy MODEL.gguf N ID...         N greedy tokens after the given ids
//        llama_logits --nll MODEL.gguf N TEXTFILE         mean NLL of the first N tokens (nats)
//        llama_logits --scores MODEL.gguf LINES           for each line "FIRST ID ID...": sum of
//            log-probabilities of the ids from number FIRST, and whether all are the most likely
// Build: scripts/build_llama_logits.sh; a check of the fixtures, no part of kvspan.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"

namespace {

struct Fixture {
  std::vector<llama_token> ids;
  std::vector<float> logits;  // [n_tokens, n_vocab]
  int n_vocab = 0;
};

Fixture read_fixture(const char* path) {
  std::ifstream in(path, std::ios::binary);
  std::int32_t head[3] = {0, 0, 0};
  in.read(reinterpret_cast<char*>(head), sizeof head);
  Fixture f;
  if (!in || head[0] != 0x474C564B) {
    std::fprintf(stderr, "%s: not a fixture\n", path);
    std::exit(2);
  }
  f.ids.resize(static_cast<std::size_t>(head[1]));
  f.n_vocab = head[2];
  f.logits.resize(f.ids.size() * static_cast<std::size_t>(head[2]));
  in.read(reinterpret_cast<char*>(f.ids.data()), static_cast<std::streamsize>(f.ids.size() * 4));
  in.read(reinterpret_cast<char*>(f.logits.data()),
          static_cast<std::streamsize>(f.logits.size() * 4));
  return f;
}

std::string read_text(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<llama_token> tokenize(const llama_vocab* vocab, const std::string& text) {
  std::vector<llama_token> ids(text.size() + 8);
  const int n = llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), ids.data(),
                               static_cast<int>(ids.size()), true, true);
  ids.resize(static_cast<std::size_t>(std::max(n, 0)));
  return ids;
}

llama_context* make_context(llama_model* model, int n_ctx) {
  llama_context_params p = llama_context_default_params();
  p.n_ctx = static_cast<std::uint32_t>(n_ctx);
  p.n_batch = p.n_ubatch = p.n_ctx;
  p.n_threads = p.n_threads_batch = 1;
  p.type_k = p.type_v = GGML_TYPE_F32;
  p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  return llama_init_from_model(model, p);
}

// Decodes `ids` from position `start` with logits for each from position `wanted`.
bool decode(llama_context* ctx, const std::vector<llama_token>& ids, int start, int wanted = 0) {
  llama_batch b = llama_batch_init(static_cast<int>(ids.size()), 0, 1);
  b.n_tokens = static_cast<int>(ids.size());
  for (int i = 0; i < b.n_tokens; ++i) {
    b.token[i] = ids[static_cast<std::size_t>(i)];
    b.pos[i] = start + i;
    b.n_seq_id[i] = 1;
    b.seq_id[i][0] = 0;
    b.logits[i] = start + i >= wanted;
  }
  const bool ok = llama_decode(ctx, b) == 0;
  llama_batch_free(b);
  return ok;
}

int compare(llama_model* model, const char* path, int first_n) {
  const Fixture f = read_fixture(path);
  const int n = first_n > 0 ? first_n : static_cast<int>(f.ids.size());
  llama_context* ctx = make_context(model, static_cast<int>(f.ids.size()));
  if (ctx == nullptr || !decode(ctx, f.ids, 0)) return 2;
  double worst = 0, size = 0;
  int at = 0;
  for (int t = 0; t < n; ++t) {
    const float* got = llama_get_logits_ith(ctx, t);
    for (int v = 0; v < f.n_vocab; ++v) {
      const double want =
          f.logits[static_cast<std::size_t>(t) * static_cast<std::size_t>(f.n_vocab) +
                   static_cast<std::size_t>(v)];
      size += want * want;
      if (std::fabs(got[v] - want) > worst) worst = std::fabs(got[v] - want), at = t;
    }
  }
  std::printf("%-40s max|diff| %.3e at token %d, rms logit %.3f, %d tokens\n", path, worst, at,
              std::sqrt(size / (double(n) * f.n_vocab)), n);
  return 0;
}

// log p(id) of one row of logits; `best` becomes false where another token is more likely.
double log_probability(const float* logits, int n_vocab, llama_token id, bool& best) {
  const float* top = std::max_element(logits, logits + n_vocab);
  if (top - logits != id) best = false;
  double sum = 0;
  for (int v = 0; v < n_vocab; ++v) sum += std::exp(double(logits[v]) - *top);
  return logits[id] - *top - std::log(sum);
}

int scores(llama_model* model, const char* path) {
  const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  llama_context* ctx = make_context(model, 2048);
  if (ctx == nullptr) return 2;
  std::ifstream in(path);
  std::vector<llama_token> held;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::size_t first = 0;
    words >> first;
    std::vector<llama_token> ids;
    for (llama_token id; words >> id;) ids.push_back(id);
    if (first == 0 || ids.size() <= first || ids.size() > 2048) return 2;
    // What the line before has in common stays.
    std::size_t kept = 0;
    while (kept < std::min(held.size(), first - 1) && held[kept] == ids[kept]) ++kept;
    llama_memory_seq_rm(llama_get_memory(ctx), 0, static_cast<llama_pos>(kept), -1);
    const std::vector<llama_token> rest(ids.begin() + static_cast<std::ptrdiff_t>(kept), ids.end());
    if (!decode(ctx, rest, static_cast<int>(kept), static_cast<int>(first) - 1)) return 2;
    double sum = 0;
    bool best = true;
    for (std::size_t t = first; t < ids.size(); ++t) {
      const float* logits = llama_get_logits_ith(ctx, static_cast<int>(t - 1 - kept));
      sum += log_probability(logits, n_vocab, ids[t], best);
    }
    held = ids;
    std::printf("%.6f %d\n", sum, best ? 1 : 0);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  llama_log_set(
      [](ggml_log_level level, const char* s, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(s, stderr);
      },
      nullptr);
  const std::string mode = argc > 1 && argv[1][0] == '-' ? argv[1] : "";
  char** a = argv + (mode.empty() ? 1 : 2);
  const int n_args = argc - (mode.empty() ? 1 : 2);
  if (n_args < 2) return 2;
  llama_model_params mp = llama_model_default_params();
  mp.vocab_only = mode == "--ids";
  llama_model* model = llama_model_load_from_file(a[0], mp);
  if (model == nullptr) return 2;
  const llama_vocab* vocab = llama_model_get_vocab(model);
  if (mode.empty()) return compare(model, a[1], n_args > 2 ? std::atoi(a[2]) : 0);
  if (mode == "--ids") {
    for (llama_token t : tokenize(vocab, read_text(a[1]))) std::printf("%d ", t);
    std::printf("\n");
    return 0;
  }
  if (mode == "--scores") return scores(model, a[1]);
  const int n = std::atoi(a[1]);
  const int n_vocab = llama_vocab_n_tokens(vocab);
  if (mode == "--nll") {
    std::vector<llama_token> ids = tokenize(vocab, read_text(a[2]));
    ids.resize(std::min(ids.size(), static_cast<std::size_t>(n)));
    llama_context* ctx = make_context(model, static_cast<int>(ids.size()));
    if (ctx == nullptr || !decode(ctx, ids, 0)) return 2;
    double sum = 0;
    for (std::size_t t = 0; t + 1 < ids.size(); ++t) {
      const float* l = llama_get_logits_ith(ctx, static_cast<int>(t));
      const double top = *std::max_element(l, l + n_vocab);
      double z = 0;
      for (int v = 0; v < n_vocab; ++v) z += std::exp(l[v] - top);
      sum += top + std::log(z) - l[ids[t + 1]];
    }
    std::printf("%zu tokens, mean NLL %.6f\n", ids.size(), sum / double(ids.size() - 1));
    return 0;
  }
  if (mode == "--greedy") {
    std::vector<llama_token> ids;
    for (int i = 2; i < n_args; ++i) ids.push_back(std::atoi(a[i]));
    llama_context* ctx = make_context(model, static_cast<int>(ids.size()) + n);
    int pos = 0;
    for (int i = 0; i < n; ++i) {
      if (ctx == nullptr || !decode(ctx, ids, pos)) return 2;
      pos += static_cast<int>(ids.size());
      const float* l = llama_get_logits_ith(ctx, static_cast<int>(ids.size()) - 1);
      ids.assign(1, static_cast<llama_token>(std::max_element(l, l + n_vocab) - l));
      char piece[64];
      const int len = llama_token_to_piece(vocab, ids[0], piece, sizeof piece, 0, true);
      std::printf("%.*s", std::max(len, 0), piece);
    }
    std::printf("\n");
    return 0;
  }
  return 2;
}
