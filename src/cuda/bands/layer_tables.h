// SPDX-License-Identifier: Apache-2.0
// All that the kernels need of one layer and that does not change: its codes on the device, and
// calls that are filled in but for the sequences.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cache/bands/bands_code.h"
#include "cuda/attend_call.h"
#include "cuda/device_memory.h"
#include "cuda/bands/attend_bands.h"
#include "cuda/bands/rope_tables.h"
#include "cuda/step_call.h"

namespace kvspan::cuda {

class LayerTables {
 public:
  // codes: one for each group of heads, or none: all rows stay as they are. rebuilds: whether rows
  // are made of codes. Fails on shapes that no kernel takes.
  static Result<LayerTables> create(const LayerShape& layer,
                                    std::span<const std::shared_ptr<const BandsCode>> codes,
                                    RopeTables& ropes, bool rebuilds);

  bool coded() const noexcept { return attend.groups > 0; }
  // Bytes of a page of codes, of this layer.
  std::size_t code_page_bytes() const noexcept { return code_page_bytes_; }
  std::size_t row_page_halves() const noexcept;
  // Device memory of tables.
  std::size_t bytes() const noexcept;
  int tile_bytes(int group) const noexcept { return tile_bytes_[static_cast<std::size_t>(group)]; }
  int group_offset(int group) const noexcept {
    return group_offsets_[static_cast<std::size_t>(group)];
  }
  // Where the layer begins in a page.
  void place(std::int32_t code_offset, std::int64_t row_halves);
  Status upload_offsets();

  AttendCall attend;
  EncodeCall encode;
  AppendCall append;
  const __half* synthesis = nullptr;        // [groups][D][chunks * 64], where rows are rebuilt
  const float* synthesis_scales = nullptr;  // [groups][D]
  const AttendVariant* variant = nullptr;
  int blocks_at_once = 0;  // of the variant, on one multiprocessor

 private:
  LayerTables() = default;
  Status add_codes(const LayerShape& layer, std::span<const std::shared_ptr<const BandsCode>> codes,
                   RopeTables& ropes, bool rebuilds);
  template <class T>
  Result<const T*> upload(std::span<const T> numbers);

  std::vector<DeviceMemory> memory_;
  std::vector<std::int32_t> tile_bytes_, group_offsets_;
  std::size_t code_page_bytes_ = 0;
};

}  // namespace kvspan::cuda
