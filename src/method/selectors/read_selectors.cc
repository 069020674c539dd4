// SPDX-License-Identifier: Apache-2.0
#include "method/selectors/read_selectors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "method/selectors/largest.h"
#include "method/state_bytes.h"

namespace kvspan {
namespace {

// Pages by which memory grows.
constexpr std::size_t kPageStep = 64;

// Memory of `wanted` bytes, of which the first `held` stay.
void resize(Buffer& memory, std::size_t held, std::size_t wanted,
            const std::shared_ptr<Ledger>& ledger) {
  if (Buffer::allocated_for(wanted) == memory.bytes()) return;
  Buffer resized = wanted > 0 ? Buffer(wanted, MemoryKind::kPositions, ledger) : Buffer();
  if (held > 0) std::memcpy(resized.data(), memory.data(), held);
  memory = std::move(resized);
}

}  // namespace

ReadSelector::ReadSelector(const ReadOptions& options, std::shared_ptr<Ledger> ledger)
    : options_(options), ledger_(std::move(ledger)) {}

ReadSelector::ReadSelector(const ReadSelector& other)
    : options_(other.options_),
      ledger_(other.ledger_),
      summaries_(other.summaries_.bytes() > 0 ? other.summaries_.clone(ledger_) : Buffer()),
      mismatches_(other.mismatches_.bytes() > 0 ? other.mismatches_.clone(ledger_) : Buffer()),
      pages_(other.pages_),
      page_floats_(other.page_floats_) {}

void ReadSelector::truncate(const Group& group, std::int32_t position) noexcept {
  pages_ = std::min(pages_, pages_before(group, position));
  try {
    reserve(pages_, page_floats_);
  } catch (const std::bad_alloc&) {  // what is there may stay
  }
}

std::size_t ReadSelector::bytes() const noexcept {
  return summaries_.bytes() + mismatches_.bytes();
}

std::size_t ReadSelector::page_floats(const Group& group) const noexcept {
  return static_cast<std::size_t>(group.options().heads) *
         static_cast<std::size_t>(group.layer().key_dim) * (options_.landmarks ? 1 : 2);
}

// Of rows first .. first + page - 1 of the block.
void ReadSelector::summarise(const RowBlock& rows, std::size_t first, std::size_t page,
                             float* summary, float* mismatch) const {
  const auto d = static_cast<std::size_t>(rows.key_dim);
  double least_cosine = 1.0;
  std::fill_n(summary, page_floats_, 0.0f);
  *mismatch = -1.0f;
  if (page == 0) return;  // positions that no token has
  for (std::int32_t h = 0; h < rows.heads; ++h) {
    const MatrixView keys = rows.keys_of(h);
    if (!options_.landmarks) {
      float* low = summary + static_cast<std::size_t>(h) * 2 * d;
      float* high = low + d;
      std::copy_n(keys.row(first), d, low);
      std::copy_n(keys.row(first), d, high);
      for (std::size_t t = 1; t < page; ++t) {
        const float* key = keys.row(first + t);
        for (std::size_t i = 0; i < d; ++i) {
          low[i] = std::min(low[i], key[i]);
          high[i] = std::max(high[i], key[i]);
        }
      }
      continue;
    }
    float* mean = summary + static_cast<std::size_t>(h) * d;
    std::fill_n(mean, d, 0.0f);
    for (std::size_t t = 0; t < page; ++t) {
      const float* key = keys.row(first + t);
      for (std::size_t i = 0; i < d; ++i) mean[i] += key[i] / static_cast<float>(page);
    }
    for (std::size_t t = 0; t < page; ++t) {
      const float* key = keys.row(first + t);
      double product = 0.0, key_square = 0.0, mean_square = 0.0;
      for (std::size_t i = 0; i < d; ++i) {
        product += double{key[i]} * double{mean[i]};
        key_square += double{key[i]} * double{key[i]};
        mean_square += double{mean[i]} * double{mean[i]};
      }
      const double lengths = std::sqrt(key_square * mean_square);
      least_cosine = std::min(least_cosine, lengths > 0.0 ? product / lengths : 0.0);
    }
  }
  *mismatch = static_cast<float>(-least_cosine);
}

void ReadSelector::reserve(std::int32_t pages, std::size_t floats) {
  const std::size_t capacity = (static_cast<std::size_t>(pages) + kPageStep - 1) / kPageStep * kPageStep;
  const auto held = static_cast<std::size_t>(pages_);
  resize(summaries_, held * floats * sizeof(float), capacity * floats * sizeof(float), ledger_);
  resize(mismatches_, held * sizeof(float), capacity * sizeof(float), ledger_);
  page_floats_ = floats;
}

void ReadSelector::save(const StateWriter& to) const {
  const auto pages = static_cast<std::size_t>(pages_);
  to.out.put(pages_);
  to.out.put_all(std::span<const float>(summaries_.as<float>(), pages * page_floats_));
  to.out.put_all(std::span<const float>(mismatches_.as<float>(), pages));
}

Status ReadSelector::load(const Group& group, const StateReader& from) {
  ByteReader& in = from.in;
  // In format 3 pages begin at position 0.
  const std::int32_t skipped = from.version < 4 ? first_page(group) : 0;
  KVSPAN_TRY(const auto saved,
             get_between<std::int32_t>("pages", 0, skipped + pages_before(group, group.extent().next), in));
  const std::int32_t pages = std::max(0, saved - skipped);
  const auto count = static_cast<std::size_t>(pages), before = static_cast<std::size_t>(saved - pages);
  const std::size_t floats = page_floats(group);
  KVSPAN_CHECK_OK(in.expect_at_least("summaries of pages", (before + count) * (floats + 1) * sizeof(float)));
  reserve(pages, floats);
  std::vector<float> unused(before * floats);
  const auto read = [&](std::string_view field, Buffer& to, std::size_t each) -> Status {
    constexpr float kLimit = std::numeric_limits<float>::max();
    KVSPAN_CHECK_OK(in.get_finite(field, std::span(unused).first(before * each), kLimit));
    return in.get_finite(field, std::span<float>(to.as<float>(), count * each), kLimit);
  };
  KVSPAN_CHECK_OK(read("summary of a page", summaries_, floats));
  KVSPAN_CHECK_OK(read("mismatch of a page", mismatches_, 1));
  pages_ = pages;
  return {};
}

Status ReadSelector::settle(Group& group, std::int32_t) {
  // Pages are of positions. Those not summarised yet are mostly full-rank rows, because a method
  // codes rows only after this has seen them.
  const std::int32_t pages = pages_before(group, group.extent().next), first_page = this->first_page(group);
  if (pages <= pages_) return {};
  const std::size_t floats = page_floats(group);
  reserve(pages, floats);
  const RowBlock rows = group.read_positions((first_page + pages_) * options_.page,
                                             (first_page + pages) * options_.page);
  std::size_t first = 0;
  for (std::int32_t p = pages_; p < pages; ++p) {
    std::size_t end = first;
    while (end < rows.size() && rows.positions[end] < (first_page + p + 1) * options_.page) ++end;
    summarise(rows, first, end - first,
              summaries_.as<float>() + static_cast<std::size_t>(p) * floats,
              mismatches_.as<float>() + p);
    first = end;
  }
  pages_ = pages;
  return {};
}

float ReadSelector::score(const Group& group, const Queries& queries, const float* summary) const {
  const auto d = static_cast<std::size_t>(group.layer().key_dim);
  const std::size_t per_head =
      queries.rows.shape[1] / static_cast<std::size_t>(group.options().heads);
  float most = -std::numeric_limits<float>::infinity();
  for (std::size_t q = 0; q < queries.rows.shape[1]; ++q) {
    const float* query = queries.rows.row(0, q);
    float sum = 0.0f;
    if (options_.landmarks) {
      const float* mean = summary + q / per_head * d;
      for (std::size_t i = 0; i < d; ++i) sum += query[i] * mean[i];
    } else {
      const float* low = summary + q / per_head * 2 * d;
      const float* high = low + d;
      for (std::size_t i = 0; i < d; ++i) sum += std::max(query[i] * low[i], query[i] * high[i]);
    }
    most = std::max(most, sum);
  }
  return most;
}

bool ReadSelector::choose(const Group& group, const Queries& queries,
                          std::vector<std::uint8_t>& keep) const {
  if (queries.positions.size() != 1) return false;
  // Of the tokens that the query sees, as when it was the newest: its own page is not full yet.
  const std::int32_t end = std::min(group.extent().next, queries.positions[0] + 1);
  const std::int32_t seen = end - group.extent().first;
  const std::int32_t pages = std::min(pages_, pages_before(group, end - 1));
  const auto wanted = static_cast<std::int32_t>(options_.keep.resolve(std::max(seen, 0)));
  if (pages == 0 || wanted >= seen) return false;
  const std::size_t floats = page_floats(group);
  std::vector<float> scores(static_cast<std::size_t>(pages));
  for (std::size_t p = 0; p < scores.size(); ++p) {
    scores[p] = score(group, queries, summaries_.as<float>() + p * floats);
  }
  if (options_.landmarks && options_.outliers > 0) {
    const std::vector<std::uint8_t> odd =
        largest({mismatches_.as<float>(), scores.size()}, options_.outliers);
    for (std::size_t p = 0; p < odd.size(); ++p) {
      if (odd[p] != 0) scores[p] = std::numeric_limits<float>::infinity();
    }
  }
  const std::vector<std::uint8_t> chosen = largest(scores, std::max(1, wanted / options_.page));
  keep.assign(static_cast<std::size_t>(group.extent().next), 0);
  const std::int32_t begin = first_page(group) * options_.page;
  for (std::size_t p = 0; p < chosen.size(); ++p) {
    std::fill_n(keep.begin() + begin + static_cast<std::ptrdiff_t>(p) * options_.page, options_.page,
                chosen[p]);
  }
  const std::int32_t always =
      std::min(end, std::max(end - begin - pages * options_.page, options_.recent));
  std::fill_n(keep.begin() + end - always, always, std::uint8_t{1});
  return true;
}

}  // namespace kvspan
