// SPDX-License-Identifier: Apache-2.0
#include "eval/verify.h"

#include <algorithm>

#include "base/fail.h"
#include "eval/divergence.h"

namespace kvspan {

Result<Verification> verify_against_peer(Engine& engine, PeerLlama& peer,
                                         std::span<const Token> tokens,
                                         const VerifyOptions& options,
                                         const std::function<void(std::size_t)>& progress) {
  KVSPAN_TRY(auto cache, make_cache(engine.cache_shape(), options.recipe));
  Verification out;
  out.tokens = tokens.size();
  const auto block = static_cast<std::size_t>(engine.options().block);
  const std::size_t single_from = tokens.size() - std::min(options.decoded, tokens.size());
  std::size_t agreed = 0, decoded = 0;
  double decoded_sum = 0.0;
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t count = done < single_from ? std::min(block, single_from - done) : 1;
    const BatchPart part{cache.get(), tokens.subspan(done, count), BatchPart::Logits::kAll};
    KVSPAN_CHECK_OK(engine.decode({&part, 1}));
    KVSPAN_CHECK_OK(peer.decode(part.tokens, part.logits));
    for (std::size_t i = 0; i < count; ++i) {
      // Position p is compared when p * compared / tokens passes a whole number: evenly spread.
      const std::size_t at = done + i;
      const bool wanted =
          at * options.compared / tokens.size() != (at + 1) * options.compared / tokens.size();
      if (!wanted && at < single_from) continue;
      const auto row = static_cast<std::int32_t>(i);
      const double kl = kl_divergence(peer.logits(row), engine.logits(row));
      out.kl_mean += kl;
      out.kl_max = std::max(out.kl_max, kl);
      agreed += argmax(peer.logits(row)) == argmax(engine.logits(row));
      ++out.compared;
      if (at >= single_from) {
        decoded_sum += kl;
        ++decoded;
      }
    }
    done += count;
    if (progress) progress(done);
  }
  out.kl_mean /= static_cast<double>(std::max<std::size_t>(out.compared, 1));
  out.top1 =
      static_cast<double>(agreed) / static_cast<double>(std::max<std::size_t>(out.compared, 1));
  out.kl_decoded = decoded_sum / static_cast<double>(std::max<std::size_t>(decoded, 1));
  return out;
}

}  // namespace kvspan
