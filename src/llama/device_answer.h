// SPDX-License-Identifier: Apache-2.0
// What answers attention nodes whose rows are in a device's memory: caches that are there too. Where
// there is none, or a sequence's cache is on the host, rows are copied to the host and back
// (llama/attention_hook.h).
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cstdint>
#include <memory>

#include "kvspan/cache.h"
#include "llama/decode_work.h"

namespace kvspan {

class DeviceAnswer {
 public:
  virtual ~DeviceAnswer() = default;

  // Whether the tensor's memory is the device's.
  virtual bool reads(const ggml_tensor* tensor) const = 0;
  // The recipe with its caches on the device. Fails, with the reason, where the device does not have
  // it, or too little memory.
  virtual Result<CacheFactory> place(const CacheFactory& caches, std::int32_t sequences,
                                     std::int32_t tokens) = 0;
  // Whether it has placed the caches of all sequences, in one memory.
  virtual bool holds(const Ubatch& ubatch) const = 0;
  // The nodes that ggml is about to compute end where an answer is due: nobody has to wait for them.
  virtual void announce() = 0;
  // A node's rows, views of device memory, enter the caches, and its result is computed: after the
  // nodes before, and before those after it.
  virtual Status answer(int layer, const Ubatch& ubatch, const NodeRows& rows) = 0;

  // Whole steps as one piece of work, recorded when libllama first uses a graph again and replayed
  // from then on. A device that records none has these as they are here.
  //
  // A graph that was not there before: what was recorded is of another.
  virtual void graph_is_new() {}
  // Whether ggml is to stop behind the first node of a graph that it has computed before.
  virtual bool may_record(const Ubatch&) { return false; }
  // It has stopped there; so many nodes of the graph are answered. kComputed: the rest is computed
  // as ever. kRecorded: it is recorded, and answers with it. kReplayed: there is nothing left to
  // do.
  enum class Step { kComputed, kRecorded, kReplayed };
  virtual Result<Step> begin_step(const Ubatch&, std::size_t) { return Step::kComputed; }
  // While a step is recorded: queries of a node are there, while its keys and values are still to
  // come.
  virtual bool recording() const { return false; }
  virtual Status queries_are_there(int, const NodeRows&) { return {}; }
  // Nothing of the step is left to compute. What went wrong when it was recorded.
  virtual Status end_step() { return {}; }
};

// For the device whose memory a model's layers are in. To be made before the context whose nodes it
// answers. Fails where kvspan has no caches for it.
Result<std::unique_ptr<DeviceAnswer>> make_device_answer(ggml_backend_dev_t device);

}  // namespace kvspan
