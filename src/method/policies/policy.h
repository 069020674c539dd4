// SPDX-License-Identifier: Apache-2.0
// What a method decides for one group of KV heads: after every step, which waiting rows become
// coded, with which codes, and what happens to coefficients stored under older codes.
//
// Rows are dealt with in units whose bounds depend on how many tokens came before and on their
// contents, never on how the calls were split; so token by token and in blocks the same segments
// come out. A policy learns from rows when they leave the recent end, not before: what truncation
// can take back, nothing has learnt from.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "kvspan/result.h"
#include "method/group.h"

namespace kvspan {

struct StateWriter;  // method/state_bytes.h
struct StateReader;
struct GroupTokens;  // method/layer_tokens.h
struct LayerTokens;
struct PositionRange;

class Policy {
 public:
  virtual ~Policy() = default;

  // The groups that `group` leads read the tokens that it holds for all of them.
  virtual void share_store(const Group& group) const noexcept { (void)group; }

  // Work of the next settle that several threads can share: the number of independent tasks. One thread opens them;
  // then any thread may run any of them, in parallel, and the group does not change until settle. Running them is
  // optional: settle does whatever was not run, so a task may also throw std::bad_alloc.
  virtual std::int32_t tasks(const Group& group) const noexcept { return (void)group, 0; }
  virtual void open_tasks(const Group& group) { (void)group; }
  virtual void run_task(const Group& group, std::int32_t task) { (void)group, (void)task; }
  // Forgets what tasks have made.
  virtual void close_tasks() noexcept {}
  // One thread. On failure, and where it throws std::bad_alloc, it has dealt with whole units or
  // with none, so that the next call goes on as this one would have.
  virtual Status settle(Group& group) = 0;
  // Tokens from `position` on are about to be forgotten, perhaps some that are settled: nothing may refer to
  // them any more. What was learnt from them may stay.
  virtual void truncate(const Group& group, std::int32_t position) noexcept { (void)group, (void)position; }
  // The position before which tokens may be forgotten once no query sees them, and that so many of
  // the list's first ones have been.
  virtual std::int32_t forgettable(const Group& group) const { return group.extent().settled_end; }
  virtual void forgot(std::int32_t tokens) { (void)tokens; }
  // The same knowledge, for a fork.
  virtual std::unique_ptr<Policy> clone() const = 0;
  // Bytes of trackers (MemoryKind::kSketches), as on the ledger.
  virtual std::size_t sketch_bytes() const noexcept { return 0; }
  // Adds the codes that the policy itself holds, used by a segment or not.
  virtual void add_codes(std::vector<const Code*>&) const {}
  // Which code its tokens have and where that comes from, for people; empty: as the recipe says.
  virtual std::string code_source(const Group& group) const;
  // All that was learnt from this sequence, and the same read into a fresh policy of the same
  // recipe; `group` has its tokens by then. Fails on what save would not have written, and where a
  // policy cannot be saved.
  virtual Status save(const StateWriter& to) const;
  virtual Status load(Group& group, const StateReader& from);
  // The group's coded tokens as plain numbers, and their positions; and those of group `index` of
  // `from` put into the stores of an empty group, zeros from the sink on where some are not held
  // (method/layer_tokens.h). Fail where only the host can hold them.
  virtual Status give_codes(const Group& group, GroupTokens& to, PositionRange& positions) const;
  virtual Status take_codes(const LayerTokens& from, std::size_t index, Group& group);
};

}  // namespace kvspan
