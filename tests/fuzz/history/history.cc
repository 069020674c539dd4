// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/history/history.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "api/certify_head.h"
#include "cache/visible.h"
#include "tests/fuzz/history/choose_recipe.h"
#include "tests/fuzz/steps.h"
#include "tests/fuzz/target.h"

namespace kvspan::fuzz {
namespace {

// The same factory through its saved codes.
CacheFactory by_codes(const CacheFactory& factory, const CacheShape& shape) {
  const auto codes = factory.save_codes();
  must(codes.has_value(), "save_codes: {}", codes ? "" : codes.error().message);
  auto again = CacheFactory::load_codes(shape, factory.recipe(), *codes);
  must(again.has_value(), "load_codes of what was saved: {}", again ? "" : again.error().message);
  return *std::move(again);
}

}  // namespace

template <class... Values>
void History::tell(fmt::format_string<Values...> what, Values&&... values) {
  fmt::format_to(std::back_inserter(told_), what, std::forward<Values>(values)...);
  told_ += "; ";
}

std::optional<History> History::begin(Input& input) {
  Recipe recipe = choose_recipe(input);
  // One after the other: of arguments of a call compilers choose the order.
  CacheShape shape = choose_shape(input);
  Model model(std::move(shape), static_cast<std::uint64_t>(input.byte()));
  const Calibration calibration = model.calibration();
  auto factory = CacheFactory::create(model.shape(), recipe.text(), &calibration);
  if (!factory) return std::nullopt;
  if (input.one_in(4)) factory = by_codes(*factory, model.shape());
  return History(input, std::move(recipe), *std::move(factory), std::move(model));
}

History::History(Input& input, Recipe recipe, CacheFactory factory, Model model)
    : input_(input),
      recipe_(std::move(recipe)),
      factory_(std::move(factory)),
      model_(std::make_unique<Model>(std::move(model))),
      replicas_(factory_.make()),
      most_tokens_(input.of({350, 200, 700, 1400})),
      // bands codes consecutive positions only.
      gaps_(input.one_in(5) && recipe_.method().name() != "bands"),
      // Selectors that read some tokens keep copies of them until the next settle.
      alone_(recipe_.selector() == nullptr),
      reads_all_(reads_all_tokens(recipe_)),
      certified_(has_certificates(recipe_.text())) {
  for (const LayerShape& shape : model_->shape().layers) {
    layers_.push_back({PlainLayer(shape)});
    tell("layer of {}/{} heads, {}+{} dims, window {}, chunk {}, cap {}, rope {}, alibi {}, sinks {}", shape.query_heads,
         shape.kv_heads, shape.key_dim, shape.value_dim, shape.window, shape.chunk, shape.soft_cap, shape.rope.rotated_dims,
         shape.alibi.size(), shape.sinks.size());
  }
  if (input.one_in(8)) replicas_.add(factory_.make(), input.between(2, 3), "with threads");
}

void History::run() {
  try {
    while (!input_.ended()) {
      switch (input_.below(20)) {
        case 11: case 12: ask_again(); break;
        case 13: settle_one(); break;
        case 14: case 15: truncate(); break;
        case 16: fork(); break;
        case 17: save_and_load(); break;
        case 18: half_step(); break;
        case 19: input_.one_in(4) ? clear() : refused_append(); break;
        default: engine_step();
      }
    }
    compare();
  } catch (const Broken& broken) {
    throw Broken(fmt::format("{}\n  recipe {}\n  {}", broken.what(), recipe_.text(), told_));
  }
}

std::vector<std::int32_t> History::next_positions(std::int32_t n) {
  std::vector<std::int32_t> positions;
  for (std::int32_t i = 0; i < n; ++i) {
    if (gaps_ && input_.one_in(8)) next_ += input_.between(1, 40);
    positions.push_back(next_++);
  }
  return positions;
}

void History::append(std::size_t layer, const std::vector<std::int32_t>& positions, bool remember) {
  const LayerShape& shape = model_->shape().layers[layer];
  const auto keys = model_->keys(layer, positions, text_), values = model_->values(layer, positions, text_);
  const KvRows rows{view_of(keys, positions.size(), shape.kv_heads, shape.key_dim),
                    view_of(values, positions.size(), shape.kv_heads, shape.value_dim), positions};
  replicas_.call("append", [&](KvCache& cache, Team& team) { return cache.append(static_cast<int>(layer), rows, team); });
  if (remember) layers_[layer].plain.append(positions, keys, values);
}

std::vector<float> History::attend(std::size_t layer, const std::vector<std::int32_t>& positions) {
  const LayerShape& shape = model_->shape().layers[layer];
  const auto queries = model_->queries(layer, positions);
  const Queries asked{view_of(queries, positions.size(), shape.query_heads, shape.key_dim), positions};
  const auto heads = static_cast<std::size_t>(shape.query_heads), dim = static_cast<std::size_t>(shape.value_dim);
  auto outputs = replicas_.outputs(
      fmt::format("attend layer {} from {}", layer, positions.front()), positions.size() * heads * dim,
      [&](KvCache& cache, Team& team, float* out) {
        return cache.attend(static_cast<int>(layer), asked, {out, {positions.size(), heads, dim}}, shared_scratch(), team);
      });
  check(layer, positions, queries, outputs);
  return outputs;
}

void History::settle(std::size_t layer) {
  replicas_.call("settle", [&](KvCache& cache, Team& team) { return cache.settle(static_cast<int>(layer), team); });
  layers_[layer].settled_at = std::max(layers_[layer].settled_at, next_);
}

bool History::holds_all_seen(std::size_t layer, std::int32_t position) const noexcept {
  const LayerShape& shape = model_->shape().layers[layer];
  return first_seen(shape, position) >= first_seen(shape, layers_[layer].settled_at);
}

void History::check(std::size_t layer, std::span<const std::int32_t> positions, const std::vector<float>& queries,
                    const std::vector<float>& outputs) {
  if (!reads_all_) return;
  const LayerShape& shape = model_->shape().layers[layer];
  const auto heads = static_cast<std::size_t>(shape.query_heads), dk = static_cast<std::size_t>(shape.key_dim),
             dv = static_cast<std::size_t>(shape.value_dim);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (!holds_all_seen(layer, positions[i])) continue;
    // Of long calls the first and last queries and some between.
    if (i > 3 && i + 3 < positions.size() && i % 16 != 0) continue;
    for (std::size_t h = 0; h < heads; ++h) {
      const float* const query = queries.data() + (i * heads + h) * dk;
      const auto plain = layers_[layer].plain.attend(query, static_cast<std::int32_t>(h), positions[i]);
      if (plain.seen == 0) continue;
      double off = 0.0;
      for (std::size_t j = 0; j < dv; ++j) {
        const double difference = outputs[(i * heads + h) * dv + j] - plain.output[j];
        off += difference * difference;
      }
      off = std::sqrt(off);
      const double limit = error_limit(recipe_, shape, query, layers_[layer].plain, plain);
      must(off <= limit, "attend layer {} head {} at {}: off by {}, at most {} ({} of {} tokens seen)", layer, h, positions[i],
           off, limit, plain.seen, layers_[layer].plain.tokens());
    }
  }
}

void History::engine_step() {
  if (next_ > most_tokens_) return;
  const std::int32_t n = input_.of({1, 1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 65, 100, 130, 257});
  const std::int32_t times = n == 1 ? input_.between(1, 40) : 1;
  const bool settles = !input_.one_in(8), asks_last = input_.one_in(6);
  tell("{} x {} at {}{}", times, n, next_, settles ? "" : " unsettled");
  for (std::int32_t i = 0; i < times; ++i) {
    const auto positions = next_positions(n);
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      append(layer, positions, true);
      attend(layer, asks_last ? std::vector{positions.back()} : positions);
      if (settles) settle(layer);
    }
  }
}

void History::ask_again() {
  const auto layer = static_cast<std::size_t>(input_.below(static_cast<std::int32_t>(layers_.size())));
  if (next_ == 0) return;
  // Past, present or future.
  const std::int32_t at = input_.of({next_ - 1, next_ - 1 + input_.byte() % 8, input_.below(next_)});
  std::vector<std::int32_t> positions{at};
  if (input_.one_in(3)) positions.push_back(at + input_.between(1, 5));
  tell("attend layer {} at {}", layer, at);
  const auto outputs = attend(layer, positions);
  check_causality(layer, at, outputs);
}

// A query sees what a copy holds that goes back to it, since rows before it stay as they are stored: later tokens must not
// count. Where a method codes several tokens together, the last of them come back as rows and are rounded once more.
void History::check_causality(std::size_t layer, std::int32_t position, const std::vector<float>& outputs) {
  const std::int32_t n = position + 1;
  if (!reads_all_ || n >= next_ || n < replicas_.first().least_tokens() || !holds_all_seen(layer, position)) return;
  auto copy = factory_.load(saved(replicas_.first()));
  must(copy.has_value(), "what was saved is not loaded: {}", copy ? "" : copy.error().message);
  const Status back = (*copy)->truncate(n);
  must(back.has_value(), "truncate({}) of a copy: {}", n, back ? "" : back.error().message);
  const LayerShape& shape = model_->shape().layers[layer];
  const std::vector<std::int32_t> positions{position};
  const auto queries = model_->queries(layer, positions);
  const auto heads = static_cast<std::size_t>(shape.query_heads), dim = static_cast<std::size_t>(shape.value_dim);
  std::vector<float> alone(heads * dim);
  TeamState state;
  Team team(state, 0, 1);
  const Status asked = (*copy)->attend(static_cast<int>(layer), {view_of(queries, 1, shape.query_heads, shape.key_dim), positions},
                                       {alone.data(), {1, heads, dim}}, shared_scratch(), team);
  must(asked.has_value(), "attend of a copy that went back: {}", asked ? "" : asked.error().message);
  const double exact = recipe_.method().name() == "full" && !recipe_.selector() ? 1e-4 : 0.1;
  const double limit = exact * layers_[layer].plain.longest_values();
  for (std::size_t i = 0; i < alone.size(); ++i) {
    must(std::abs(alone[i] - outputs[i]) <= limit, "attend layer {} at {}: number {} is {}, and {} without the tokens after it",
         layer, position, i, outputs[i], alone[i]);
  }
}

void History::settle_one() {
  const auto layer = static_cast<std::size_t>(input_.below(static_cast<std::int32_t>(layers_.size())));
  tell("settle layer {}", layer);
  settle(layer);
}

void History::forget(std::int32_t n) {
  for (Layer& layer : layers_) {
    layer.plain.truncate(n);
    if (n == 0) layer.settled_at = 0;
  }
  next_ = std::min(next_, n);
  ++text_;
}

void History::truncate() {
  const std::int32_t least = replicas_.first().least_tokens(), now = replicas_.first().tokens();
  must(now == next_, "tokens() is {} after appending up to {}", now, next_);
  must(now == 0 || least <= now, "least_tokens() is {} of {}", least, now);
  const std::int32_t n = input_.of({std::max(least, now - input_.below(40)), input_.between(least, now), least, 0, now + 3});
  tell("truncate to {} of {}, least {}", n, now, least);
  if (least > 1) {
    replicas_.refuse(fmt::format("truncate({}) below {}", least - 1, least),
                     [&](KvCache& cache, Team& team) { return team.leader() ? cache.truncate(least - 1) : Status(); });
  }
  replicas_.call("truncate", [&](KvCache& cache, Team& team) { return team.leader() ? cache.truncate(n) : Status(); });
  forget(n);
  must(replicas_.first().tokens() == next_, "tokens() is {} after truncate({})", replicas_.first().tokens(), n);
  compare();
  if (next_ == 0) return;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) attend(layer, {next_ - 1});
}

void History::fork() {
  auto forked = replicas_.first().fork();
  must(forked.has_value(), "fork: {}", forked ? "" : forked.error().message);
  alone_ = false;
  switch (input_.below(3)) {
    case 0:
      tell("fork");
      replicas_.add(*std::move(forked), input_.between(1, 2), "forked");
      break;
    case 1:
      tell("fork in place of the old one");
      replicas_.replace_first(*std::move(forked), "forked");
      break;
    default: {
      tell("fork that goes its own way");
      const auto before = saved(replicas_.first());
      KvCache& cache = **forked;
      if (input_.one_in(2)) (void)cache.truncate(input_.between(cache.least_tokens(), cache.tokens()));
      const Model other(model_->shape(), 99);
      must(step(cache, other, cache.tokens(), 70), "a step of a fork fails");
      must(saved(replicas_.first()) == before, "a fork's steps change the cache it was made of");
      forked->reset();
      must(saved(replicas_.first()) == before, "a fork's end changes the cache it was made of");
    }
  }
}

void History::save_and_load() {
  const auto bytes = saved(replicas_.first());
  auto loaded = factory_.load(bytes);
  must(loaded.has_value(), "what was saved is not loaded: {}", loaded ? "" : loaded.error().message);
  must(saved(**loaded) == bytes, "a loaded cache saves other bytes");
  tell("save and load {} bytes", bytes.size());
  if (input_.one_in(3)) {
    replicas_.replace_first(*std::move(loaded), "loaded");
  } else {
    replicas_.add(*std::move(loaded), input_.between(1, 2), "loaded");
  }
  compare();
}

// A step that some layers have made is taken back.
void History::half_step() {
  if (next_ > most_tokens_) return;
  const std::int32_t before = next_;
  const auto last = static_cast<std::size_t>(input_.below(static_cast<std::int32_t>(layers_.size())));
  const bool attends = input_.one_in(2), settles = input_.one_in(2) && last + 1 < layers_.size();
  const auto positions = next_positions(input_.of({1, 1, 5, 40}));
  next_ = before;
  tell("{} tokens at {} in {} layers only", positions.size(), before, last + 1);
  ++text_;
  for (std::size_t layer = 0; layer <= last; ++layer) {
    append(layer, positions, true);
    if (layer < last || attends) attend(layer, positions);
    next_ = positions.back() + 1;
    if (layer < last || settles) settle(layer);
    next_ = before;
  }
  const std::int32_t now = replicas_.first().tokens(), least = replicas_.first().least_tokens();
  const std::int32_t whole = last + 1 == layers_.size() ? positions.back() + 1 : before;
  must(now == whole, "tokens() is {}, all layers hold up to {}", now, whole);
  // Where all layers have it, the step is whole and may have dropped tokens that the one before it needs.
  const std::int32_t n = before == 0 || (now > before && least > before) ? 0 : before;
  replicas_.call("truncate", [&](KvCache& cache, Team& team) { return team.leader() ? cache.truncate(n) : Status(); });
  forget(n);
  compare();
}

void History::clear() {
  tell("clear");
  replicas_.call("clear", [&](KvCache& cache, Team& team) {
    if (team.leader()) cache.clear();
    return Status();
  });
  forget(0);
  if (input_.one_in(2)) replicas_.add(factory_.make(), 1, "new instead of cleared");
  compare();
}

void History::refused_append() {
  const LayerShape& shape = model_->shape().layers.front();
  const std::size_t n = input_.one_in(2) ? 1 : 300;
  std::vector<std::int32_t> positions(n);
  std::iota(positions.begin(), positions.end(), next_);
  auto keys = model_->keys(0, positions, text_), values = model_->values(0, positions, text_);
  std::int32_t heads = shape.kv_heads;
  const std::int32_t kind = input_.below(next_ > 0 ? 6 : 5);
  switch (kind) {
    case 0: keys.back() = std::numeric_limits<float>::quiet_NaN(); break;
    case 1: values[values.size() / 2] = -std::numeric_limits<float>::infinity(); break;
    case 2: positions.back() = 1 << 30; break;
    case 3: ++heads; break;
    case 4: positions.front() = positions.back() + 1; if (n == 1) positions.front() = -1; break;
    default: positions.front() = next_ - 1;
  }
  keys.resize(n * static_cast<std::size_t>(heads * shape.key_dim));
  values.resize(n * static_cast<std::size_t>(heads * shape.value_dim));
  const KvRows rows{view_of(keys, n, heads, shape.key_dim), view_of(values, n, heads, shape.value_dim), positions};
  tell("append of wrong rows ({})", kind);
  replicas_.refuse("append of wrong rows", [&](KvCache& cache, Team& team) { return cache.append(0, rows, team); });
}

}  // namespace kvspan::fuzz
