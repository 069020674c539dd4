// SPDX-License-Identifier: Apache-2.0
// Which tokens of a group are kept, or read: decided beside the method, which decides how they are
// stored. A selector runs before its method's policy, so that it meets new rows at full rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvspan/cache.h"
#include "kvspan/result.h"
#include "method/group.h"

namespace kvspan {

struct StateWriter;  // method/state_bytes.h
struct StateReader;

class Selector {
 public:
  virtual ~Selector() = default;

  // How many of a call's last queries it wants to know the attention of; 0: none.
  virtual std::int32_t observed(std::int32_t queries) const noexcept {
    (void)queries;
    return 0;
  }
  // received: [tokens], the attention given by those queries, summed over the group's query heads.
  virtual void observe(std::span<const float> received) { (void)received; }
  // After the attention of `queries` queries: drops what is to go.
  virtual Status settle(Group& group, std::int32_t queries) = 0;
  // Which tokens the queries of a step read: fills keep, a mark for each position so far, and
  // returns true; or all.
  // queries: [n, query heads of the group, key_dim].
  virtual bool choose(const Group& group, const Queries& queries,
                      std::vector<std::uint8_t>& keep) const {
    (void)group, (void)queries, (void)keep;
    return false;
  }
  // As that of a policy.
  virtual void truncate(const Group& group, std::int32_t position) noexcept = 0;
  // The first `tokens` tokens of the list, which no later query sees, have been forgotten.
  virtual void forgot(std::int32_t tokens) = 0;
  virtual std::unique_ptr<Selector> clone() const = 0;
  virtual std::size_t bytes() const noexcept { return 0; }  // MemoryKind::kPositions
  // As those of a policy.
  virtual void save(const StateWriter& to) const = 0;
  virtual Status load(const Group& group, const StateReader& from) = 0;
};

}  // namespace kvspan
