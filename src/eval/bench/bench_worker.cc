// SPDX-License-Identifier: Apache-2.0
// The protocol on the two pipes: the parent writes an int32 command (n > 0: prefill n tokens, 0:
// decode once), the child answers with a Message. The first Message, unasked, tells how loading
// went.
#include "eval/bench/bench_worker.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "api/code_source.h"
#include "base/fail.h"
#include "eval/engine_caches.h"
#include "llama/peer_llama.h"

namespace kvspan {
namespace {

struct Message {
  BenchWorker::Reply reply;
  std::int32_t failed = 0;
  char error[500] = {};
};

bool read_all(int fd, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::read(fd, at, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_all(int fd, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::write(fd, at, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return true;
}

std::uint64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

// The two engines behind the few steps a benchmark makes.
class BenchSubject {
 public:
  virtual ~BenchSubject() = default;
  // `tokens` enter every sequence: several one after the other, a single one in one pass.
  virtual Status step(std::span<const Token> tokens) = 0;
  virtual Status truncate(std::int32_t n) = 0;
  virtual std::int32_t tokens() const = 0;
  virtual void fill(BenchWorker::Reply& reply) const = 0;
};

class KvspanSubject final : public BenchSubject {
 public:
  static Result<std::unique_ptr<BenchSubject>> make(const BenchWorkerOptions& options) {
    auto subject = std::make_unique<KvspanSubject>();
    EngineOptions engine{options.threads, options.block};
    engine.gpu_layers = options.gpu_layers;
    if (options.gpu_layers > 0) engine.sequences = options.batch;
    KVSPAN_TRY(subject->engine_, Engine::load(options.model_path, engine));
    KVSPAN_TRY(const CacheFactory caches, engine_caches(*subject->engine_, options.subject.recipe));
    if (!subject->engine_->device_note().empty()) {
      return fail(ErrorCode::kUnsupported, "{}", subject->engine_->device_note());
    }
    for (int i = 0; i < options.batch; ++i) subject->caches_.push_back(caches.make());
    return std::unique_ptr<BenchSubject>(std::move(subject));
  }
  Status step(std::span<const Token> tokens) override {
    attention_ = 0.0;
    std::vector<BatchPart> parts;
    for (const auto& cache : caches_) parts.push_back({cache.get(), tokens});
    const std::size_t together = tokens.size() == 1 ? parts.size() : 1;
    for (std::size_t at = 0; at < parts.size(); at += together) {
      KVSPAN_CHECK_OK(engine_->decode(std::span(parts).subspan(at, together)));
      attention_ += engine_->attention_seconds();
    }
    return {};
  }
  // A method that has coded or dropped tokens in the meantime cannot go back: it goes on, some
  // tokens deeper.
  Status truncate(std::int32_t n) override {
    for (const auto& cache : caches_) {
      Status status = cache->truncate(n);
      if (!status && status.error().code != ErrorCode::kInvalidArgument) return status;
    }
    return {};
  }
  std::int32_t tokens() const override { return caches_.front()->tokens(); }
  void fill(BenchWorker::Reply& reply) const override {
    reply.attention_seconds += attention_;
    reply.kv_bytes = reply.kv_bytes_full = 0;
    for (const auto& cache : caches_) {
      reply.kv_bytes += cache->bytes().total;
      reply.kv_bytes_full += full_rank_f16_bytes(cache->shape(), cache->tokens());
      reply.shared_bytes = cache->bytes().shared;
    }
    std::strncpy(reply.code, code_source(*caches_.front()).c_str(), sizeof(reply.code) - 1);
  }

 private:
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<KvCache>> caches_;
  double attention_ = 0.0;  // seconds of the last step
};

class LlamaSubject final : public BenchSubject {
 public:
  static Result<std::unique_ptr<BenchSubject>> make(const BenchWorkerOptions& options) {
    auto subject = std::make_unique<LlamaSubject>();
    // Only for the shape of the cache; mapped weights that are not read cost nothing.
    KVSPAN_TRY(const auto engine, Engine::load(options.model_path, {1, 1}));
    subject->shape_ = engine->cache_shape();
    subject->batch_ = options.batch;
    PeerOptions peer;
    peer.threads = options.threads;
    peer.context = options.context;
    peer.block = options.block;
    peer.kv_type = options.subject.recipe;
    peer.sequences = options.batch;
    peer.gpu_layers = options.gpu_layers;
    KVSPAN_TRY(subject->peer_, PeerLlama::load(options.model_path, peer));
    return std::unique_ptr<BenchSubject>(std::move(subject));
  }
  Status step(std::span<const Token> tokens) override {
    return peer_->decode(tokens, BatchPart::Logits::kLast);
  }
  Status truncate(std::int32_t n) override { return peer_->truncate(n); }
  std::int32_t tokens() const override { return peer_->tokens(); }
  void fill(BenchWorker::Reply& reply) const override {
    reply.kv_bytes_full =
        static_cast<std::uint64_t>(batch_) * full_rank_f16_bytes(shape_, peer_->tokens());
    reply.kv_bytes = peer_->kv_bytes();
  }

 private:
  CacheShape shape_;
  int batch_ = 1;
  std::unique_ptr<PeerLlama> peer_;
};

Status prefill(BenchSubject& subject, const BenchWorkerOptions& options, std::int32_t count,
               BenchWorker::Reply& reply) {
  while (count > 0) {
    const std::int32_t now = std::min(count, options.block);
    KVSPAN_CHECK_OK(subject.step(
        std::span(options.tokens)
            .subspan(static_cast<std::size_t>(subject.tokens()), static_cast<std::size_t>(now))));
    subject.fill(reply);
    count -= now;
  }
  return {};
}

Status run_command(BenchSubject& subject, const BenchWorkerOptions& options, std::int32_t command,
                   BenchWorker::Reply& reply) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const std::int32_t depth = subject.tokens();
  if (command > 0) {
    KVSPAN_CHECK_OK(prefill(subject, options, command, reply));
  } else {
    KVSPAN_CHECK_OK(subject.step({&options.tokens[static_cast<std::size_t>(depth)], 1}));
  }
  reply.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (command <= 0) {
    KVSPAN_CHECK_OK(subject.truncate(depth));
    subject.fill(reply);
  }
  reply.peak_rss_bytes = peak_rss_bytes();
  return {};
}

Result<std::unique_ptr<BenchSubject>> make_subject(const BenchWorkerOptions& options) {
  return options.subject.engine == "kvspan" ? KvspanSubject::make(options)
                                            : LlamaSubject::make(options);
}

void send(int fd, const Status& status, const BenchWorker::Reply& reply) {
  Message message;
  message.reply = reply;
  if (!status) {
    message.failed = 1 + static_cast<std::int32_t>(status.error().code);
    std::strncpy(message.error, status.error().message.c_str(), sizeof(message.error) - 1);
  }
  if (!write_all(fd, &message, sizeof message)) _exit(1);
}

[[noreturn]] void serve(const BenchWorkerOptions& options, int in, int out) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGINT, SIG_IGN);  // the parent decides
  auto subject = make_subject(options);
  send(out, subject ? Status() : Status(subject.error()), {});
  std::int32_t command = 0;
  while (subject && read_all(in, &command, sizeof command)) {
    BenchWorker::Reply reply;
    const Status status = run_command(**subject, options, command, reply);
    send(out, status, reply);
  }
  _exit(0);
}

// In this process.
class LocalWorker final : public BenchWorker {
 public:
  LocalWorker(const BenchWorkerOptions& options, std::unique_ptr<BenchSubject> subject)
      : options_(options), subject_(std::move(subject)) {}

 private:
  Result<Reply> ask(std::int32_t command) override {
    Reply reply;
    KVSPAN_CHECK_OK(run_command(*subject_, options_, command, reply));
    return reply;
  }

  BenchWorkerOptions options_;
  std::unique_ptr<BenchSubject> subject_;
};

class ForkedWorker final : public BenchWorker {
 public:
  ForkedWorker(pid_t child, int to_child, int from_child)
      : child_(child), to_child_(to_child), from_child_(from_child) {}
  ForkedWorker(const ForkedWorker&) = delete;
  ForkedWorker& operator=(const ForkedWorker&) = delete;
  ~ForkedWorker() override {  // ends the child
    close(to_child_);
    close(from_child_);
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  Result<Reply> receive() {
    Message message;
    if (!read_all(from_child_, &message, sizeof message)) {
      return fail(ErrorCode::kIo, "a benchmark process has ended");
    }
    if (message.failed != 0) {
      return Error{static_cast<ErrorCode>(message.failed - 1), message.error};
    }
    return message.reply;
  }

 private:
  Result<Reply> ask(std::int32_t command) override {
    if (!write_all(to_child_, &command, sizeof command)) {
      return fail(ErrorCode::kIo, "a benchmark process has ended");
    }
    return receive();
  }

  pid_t child_;
  int to_child_;
  int from_child_;
};

}  // namespace

Result<std::unique_ptr<BenchWorker>> BenchWorker::start(const BenchWorkerOptions& options) {
  if (options.gpu_layers > 0) {
    KVSPAN_TRY(auto subject, make_subject(options));
    return std::unique_ptr<BenchWorker>(std::make_unique<LocalWorker>(options, std::move(subject)));
  }
  int down[2], up[2];
  if (pipe(down) != 0 || pipe(up) != 0) {
    return fail(ErrorCode::kIo, "cannot make a pipe: {}", std::strerror(errno));
  }
  const pid_t child = fork();
  if (child < 0) return fail(ErrorCode::kIo, "cannot fork: {}", std::strerror(errno));
  if (child == 0) {
    close(down[1]);
    close(up[0]);
    serve(options, down[0], up[1]);
  }
  close(down[0]);
  close(up[1]);
  auto worker = std::make_unique<ForkedWorker>(child, down[1], up[0]);
  KVSPAN_CHECK_OK(worker->receive());
  return std::unique_ptr<BenchWorker>(std::move(worker));
}

}  // namespace kvspan
