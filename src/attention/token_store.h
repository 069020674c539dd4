// SPDX-License-Identifier: Apache-2.0
// A store of tokens: some tokens of a group of KV heads, held in one way. Lists of segments are one
// kind; a method may bring its own. What works on caches (steps, forks, truncation, bytes, saving,
// certificates) knows this interface and no kind.
// One thread writes at a time, nobody reading; const members may run side by side.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/scratch.h"
#include "attention/store_facts.h"
#include "cache/rows/row_block.h"
#include "cache/state_stream.h"
#include "kvspan/cache.h"
#include "kvspan/result.h"
#include "kvspan/team.h"
#include "kvspan/tensor_view.h"

namespace kvspan {

// What of attention is asked for, of all heads of the layer.
struct AttendCall {
  const LayerShape& layer;
  const Queries& queries;
  TensorView<float, 3> out;  // [n, query_heads, value_dim]
  // [n, query_heads], natural log of the sum of e^logit, -inf where nothing is seen; no data: not
  // asked for.
  TensorView<float, 2> lse;
  // out and lse hold the attention to other tokens and become that to all of them; otherwise they
  // are written.
  bool adds = false;
};

class TokenStore {
 public:
  virtual ~TokenStore() = default;
  // The same tokens; memory is shared until one of the two writes to it.
  virtual std::unique_ptr<TokenStore> clone() const = 0;

  virtual bool empty() const noexcept = 0;
  // Positions of the tokens lie from here to below there; 0 both where there are none.
  virtual std::int32_t first_position() const noexcept = 0;
  virtual std::int32_t next_position() const noexcept = 0;
  // Adds the rows of tokens at positions [first, end), increasing, as attention sees them.
  virtual void read(std::int32_t first, std::int32_t end, RowBlock& to) const = 0;
  // Adds the rows of those that another store holds exactly, as far as this one could restore them too.
  virtual void read_escaped(std::int32_t first, std::int32_t end, RowBlock& to) const {
    (void)first, (void)end, (void)to;
  }

  // Attention to the tokens of `parts`, stores of this one's kind, this one among them: the KV
  // heads that hold such tokens, in order. Does not add the layer's sinks. All members of the team
  // call with equal arguments; ends with a barrier. Same bits for any team. Fails only for lack of
  // memory.
  virtual Status attend(const AttendCall& call, std::span<const StorePart> parts,
                        AttentionScratch& scratch, Team& team) const = 0;
  // What certificates need of the tokens of one head of the store, which stays as it is meanwhile.
  // `layer` has the store's heads. Fails where a coded token keeps no residual norms.
  virtual Result<std::unique_ptr<StoreFacts>> facts(const LayerShape& layer,
                                                    std::int32_t head) const = 0;

  // Forgets tokens before `position`, as far as they go without moving others. One beyond the last
  // position forgotten; 0 where none was. Throws std::bad_alloc, and then holds what it held.
  virtual std::int32_t forget_before(std::int32_t position) = 0;
  // The tokens with keep[position] != 0, of as many positions as there are, for a call to read;
  // tokens that lie together may all come where one is kept. Null: all of them. Throws
  // std::bad_alloc.
  virtual std::unique_ptr<TokenStore> chosen(std::span<const std::uint8_t> keep) const = 0;

  // The last position up to `position` from which on tokens can be forgotten.
  virtual std::int32_t cut_at(std::int32_t position) const noexcept = 0;
  // Forgets tokens from such a position on.
  virtual void truncate(std::int32_t position) noexcept = 0;

  // Adds what it holds, as allocated. Codes that several stores may share are added to `codes`
  // instead, once for each use.
  virtual void add_bytes(CacheBytes& bytes, std::vector<const Code*>& codes) const = 0;
  // docs/reference/formats/cache.md. load() is for an empty store made as the saved one was; a
  // failure leaves it in some state.
  virtual void save(const StateWriter& to) const = 0;
  virtual Status load(const StateReader& from) = 0;
};

}  // namespace kvspan
