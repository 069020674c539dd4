// SPDX-License-Identifier: Apache-2.0
#include "cuda/bands/layer_tables.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <type_traits>

#include "base/fail.h"
#include "cuda/bands/bands_operands.h"
#include "cuda/bands/key_steps.h"

namespace kvspan::cuda {
namespace {

int whole_chunks(int places) {
  return (places + kChunkPlaces - 1) / kChunkPlaces * kChunkPlaces;
}

}  // namespace

template <class T>
Result<const T*> LayerTables::upload(std::span<const T> numbers) {
  KVSPAN_TRY(DeviceMemory memory, DeviceMemory::copy_of<T>(numbers));
  memory_.push_back(std::move(memory));
  return static_cast<const T*>(memory_.back().template as<T>());
}

Result<LayerTables> LayerTables::create(const LayerShape& layer,
                                        std::span<const std::shared_ptr<const BandsCode>> codes,
                                        RopeTables& ropes, bool rebuilds) {
  for (const std::int32_t dim : {layer.key_dim, layer.value_dim}) {
    if (dim > 256 || dim % 8 != 0) {
      return fail(ErrorCode::kUnsupported,
                  "heads of {} numbers are not on the device; allowed: multiples of 8 up to 256",
                  dim);
    }
  }
  LayerTables tables;
  AttendCall& a = tables.attend;
  a.query_heads = layer.query_heads;
  a.kv_heads = layer.kv_heads;
  a.key_dim = layer.key_dim;
  a.value_dim = layer.value_dim;
  a.logit_scale = layer.logit_scale;
  a.soft_cap = layer.soft_cap * std::numbers::log2e_v<float>;
  tables.append.kv_heads = layer.kv_heads;
  tables.append.key_dim = layer.key_dim;
  tables.append.value_dim = layer.value_dim;
  if (!codes.empty()) KVSPAN_CHECK_OK(tables.add_codes(layer, codes, ropes, rebuilds));
  return tables;
}

Status LayerTables::add_codes(const LayerShape& layer,
                              std::span<const std::shared_ptr<const BandsCode>> codes,
                              RopeTables& ropes, bool rebuilds) {
  const BandsCode& first = *codes.front();
  int chunks = 0, components = 0;
  bool uniform2 = true;
  for (const auto& code : codes) {
    if (code->heads() != first.heads()) {
      return fail(
          ErrorCode::kUnsupported,
          "groups of {} and {} heads in one layer are not on the device; allowed: groups of "
          "one size",
          first.heads(), code->heads());
    }
    chunks = std::max(chunks, BandsTiles(code->layout()).chunks());
    components = std::max(components, whole_chunks(code->places()));
  }
  if (first.rope().angles.size() % 2 != 0) {
    return fail(ErrorCode::kUnsupported,
                "RoPE over {} numbers is not on the device; allowed: multiples of 4",
                2 * first.rope().angles.size());
  }
  const int queries = first.heads() * (layer.query_heads / layer.kv_heads);
  int most = 0, refined = 0;
  for (const auto& code : codes) {
    const BandsTiles tiles(code->layout(), chunks);
    uniform2 = uniform2 && tiles.all_of_width(2);
    int own = 0;
    for (const ScoreUnit& unit : score_units(tiles)) own += unit.refines ? 1 : 0;
    refined = std::max(refined, own);
    most = std::max(most, static_cast<int>(tiles.tile_bytes()));
  }
  KVSPAN_TRY(const RopeTable* rope, ropes.find(first.rope(), first.anchor_block()));
  const AnchoredMeans means(first.rope(), kMeanBlock, first.key_mean(0), first.heads(),
                            layer.key_dim, MemoryKind::kShared, nullptr);
  const MeanOperands mean = mean_operands(means);
  const AttendNeed need{queries, chunks, refined, uniform2, most, mean.terms};
  variant = find_variant(need);
  if (variant == nullptr) {
    return fail(
        ErrorCode::kUnsupported,
        "a code of {} digits in {} bytes for 32 tokens is not on the device for {} query heads; allowed: "
        "1024 for up to 16, 1536 for up to 32, of fewer bytes",
        chunks * kChunkPlaces, most, queries);
  }
  const int panel_units = variant->uniform2 ? 2 : 1;
  const auto units = static_cast<std::size_t>(variant->units(need));
  std::vector<BandsOperands> operands;
  for (const auto& code : codes) {
    operands.push_back(
        bands_operands(*code, chunks, components, variant->uniform2 ? variant->most_chunks : 0,
                       key_steps_of(layer.key_dim)));
  }

  BandsOperands all;  // of all groups, one after the other
  const auto add = []<class T>(std::vector<T>& to, const std::vector<T>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  std::vector<EncodeCall::Group> encoders;
  std::vector<std::uint8_t> widths(codes.size() * kMaxChunks);
  std::vector<std::int32_t> offsets(codes.size() * kMaxChunks);
  std::vector<std::uint32_t> unit_table(codes.size() * kMaxUnits);
  std::vector<std::uint8_t> unit_levels(codes.size() * kMaxUnits * 64);
  std::vector<std::int32_t> group_units;
  std::vector<float> score_scales;
  std::size_t at = 0;
  for (std::size_t g = 0; g < operands.size(); ++g) {
    BandsOperands& o = operands[g];
    const int last = o.units.back().exponent;
    int before = o.units.front().exponent;
    for (std::size_t u = 0; u < o.units.size(); ++u) {
      const ScoreUnit& unit = o.units[u];
      int run = 1;
      while (run < kMostUnitRun && u + static_cast<std::size_t>(run) < o.units.size()) {
        const ScoreUnit& next = o.units[u + static_cast<std::size_t>(run)];
        if (next.kind != unit.kind || next.exponent != unit.exponent) break;
        ++run;
      }
      unit_table[g * kMaxUnits + u] =
          unit_word(unit.offset, unit.kind, unit.exponent - before, last - unit.exponent, run) |
          (unit.refines ? kRefines : 0);
      before = unit.exponent;
    }
    for (std::size_t i = 0; i < o.units.size() * 64; ++i) {
      const auto panel = static_cast<std::size_t>(64 * panel_units);
      const PanelByte byte = panel_byte(panel_units, static_cast<int>(i % panel));
      const ScoreUnit& unit =
          o.units[i / panel * static_cast<std::size_t>(panel_units) + static_cast<std::size_t>(byte.unit)];
      unit_levels[g * kMaxUnits * 64 + i] =
          unit_form(unit.kind).full[static_cast<std::size_t>(4 * byte.word + byte.byte)];
    }
    group_units.push_back(static_cast<std::int32_t>(o.units.size()));
    score_scales.push_back(std::ldexp(1.0f, -last));
    // Heads of all groups have as many units; those that a group has not are zeros.
    const std::size_t heads = static_cast<std::size_t>(first.heads());
    const auto widen = [&](auto& numbers) {
      using T = typename std::remove_reference_t<decltype(numbers)>::value_type;
      const std::size_t own = numbers.size() / heads, all_own = own / o.units.size() * units;
      std::vector<T> wide(heads * all_own);
      for (std::size_t h = 0; h < heads; ++h) {
        std::copy_n(numbers.begin() + static_cast<std::ptrdiff_t>(h * own), own,
                    wide.begin() + static_cast<std::ptrdiff_t>(h * all_own));
      }
      numbers = std::move(wide);
    };
    widen(o.key_basis);
    add(all.key_basis, o.key_basis);
    add(all.key_scales, o.key_scales);
    add(all.key_means, o.key_means);
    add(all.value_basis, o.value_basis);
    add(all.value_scales, o.value_scales);
    add(all.steps, o.steps);
    add(all.quad_digits, o.quad_digits);
    EncodeCall::Group encoder{};
    KVSPAN_TRY(encoder.analysis, upload<float>(o.analysis));
    KVSPAN_TRY(encoder.means, upload<float>(o.means));
    KVSPAN_TRY(encoder.inverse_steps, upload<float>(o.inverse_steps));
    KVSPAN_TRY(encoder.lowest, upload<float>(o.lowest));
    KVSPAN_TRY(encoder.highest, upload<float>(o.highest));
    encoder.gain = codes[g]->gain_rule();
    encoder.gain.places = components;
    KVSPAN_TRY(encoder.gain.inverse_sigma, upload<float>(o.inverse_sigma));
    KVSPAN_TRY(encoder.gain.reach, upload<float>(o.reach));
    encoder.has_gain = codes[g]->gain();
    encoders.push_back(encoder);
    for (int k = 0; k < chunks; ++k) {
      widths[g * kMaxChunks + static_cast<std::size_t>(k)] =
          o.tiles.widths()[static_cast<std::size_t>(k)];
      offsets[g * kMaxChunks + static_cast<std::size_t>(k)] = o.tiles.offset(k);
    }
    const auto bytes = static_cast<std::int32_t>(o.tiles.tile_bytes());
    tile_bytes_.push_back(bytes);
    group_offsets_.push_back(static_cast<std::int32_t>(at));
    at += o.tiles.tile_bytes() * (kPageTokens / kTileTokens);
  }
  code_page_bytes_ = at;
  KVSPAN_TRY(const Half* key_basis, upload<Half>(all.key_basis));
  attend.key_basis = reinterpret_cast<const __half*>(key_basis);
  KVSPAN_TRY(attend.key_scales, upload<float>(all.key_scales));
  KVSPAN_TRY(attend.group_units, upload<std::int32_t>(group_units));
  KVSPAN_TRY(attend.unit_table, upload<std::uint32_t>(unit_table));
  KVSPAN_TRY(const std::uint8_t* levels, upload<std::uint8_t>(unit_levels));
  attend.unit_levels = reinterpret_cast<const uint4*>(levels);
  KVSPAN_TRY(attend.score_scales, upload<float>(score_scales));
  KVSPAN_TRY(attend.key_means, upload<float>(all.key_means));
  KVSPAN_TRY(const Half* basis, upload<Half>(all.value_basis));
  attend.value_basis = reinterpret_cast<const __half*>(basis);
  KVSPAN_TRY(const float* value_scales, upload<float>(all.value_scales));
  attend.value_scales = reinterpret_cast<const float2*>(value_scales);
  KVSPAN_TRY(attend.steps, upload<float>(all.steps));
  if (rebuilds) {
    SynthesisOperands made;
    for (const auto& code : codes) made.add(*code, chunks);
    KVSPAN_TRY(const Half* rows, upload<Half>(made.rows));
    synthesis = reinterpret_cast<const __half*>(rows);
    KVSPAN_TRY(synthesis_scales, upload<float>(made.scales));
  }

  AttendCall& a = attend;
  a.rope_pairs = static_cast<std::int32_t>(first.rope().angles.size());
  a.neighbours = first.rope().pairs == Rope::Pairs::kNeighbours;
  a.rope_magnitude = first.rope().magnitude;
  a.turns = rope->turns.as<float2>();
  a.groups = static_cast<std::int32_t>(codes.size());
  a.group_heads = first.heads();
  a.chunks = chunks;
  a.units = static_cast<std::int32_t>(units);
  a.padded_queries = variant->rows;
  a.anchor = first.anchor_block();
  a.most_tile_bytes = most;
  a.mean_terms = mean.terms;
  a.mean_alone = mean.alone;
  a.mean_slow = mean.slow;
  KVSPAN_TRY(const float* polynomials, upload<float>(mean.polynomials));
  a.fold_polynomials = reinterpret_cast<const float4*>(polynomials);
  KVSPAN_TRY(const Half* table, upload<Half>(mean.table));
  a.mean_table = reinterpret_cast<const uint4*>(table);
  KVSPAN_TRY(a.chunk_widths, upload<std::uint8_t>(widths));
  KVSPAN_TRY(a.chunk_offsets, upload<std::int32_t>(offsets));
  KVSPAN_TRY(a.tile_bytes, upload<std::int32_t>(tile_bytes_));

  EncodeCall& e = encode;
  e.kv_heads = layer.kv_heads;
  e.key_dim = layer.key_dim;
  e.value_dim = layer.value_dim;
  e.rope_pairs = a.rope_pairs;
  e.neighbours = a.neighbours;
  e.rope_magnitude = a.rope_magnitude;
  e.anchor = a.anchor;
  e.turns = a.turns;
  e.offset_turns = rope->offsets.as<float2>();
  e.groups = a.groups;
  e.group_heads = a.group_heads;
  e.chunks = chunks;
  e.components = components;
  static_assert(sizeof(BandsTiles::QuadDigits) == sizeof(short4));
  KVSPAN_TRY(const BandsTiles::QuadDigits* digits, upload<BandsTiles::QuadDigits>(all.quad_digits));
  e.quad_digits = reinterpret_cast<const short4*>(digits);
  e.chunk_widths = a.chunk_widths;
  e.chunk_offsets = a.chunk_offsets;
  e.tile_bytes = a.tile_bytes;
  e.most_tile_bytes = most;
  KVSPAN_TRY(e.group_table, upload<EncodeCall::Group>(encoders));

  blocks_at_once = cuda::blocks_at_once(*variant, variant->shared_bytes(a));
  if (blocks_at_once == 0) {
    return fail(ErrorCode::kUnsupported,
                "attention to a code of {} bytes a tile does not fit this device: {}", most,
                cudaGetErrorString(cudaGetLastError()));
  }
  return {};
}

std::size_t LayerTables::row_page_halves() const noexcept {
  return static_cast<std::size_t>(kRowPageTokens) * static_cast<std::size_t>(attend.kv_heads) *
         static_cast<std::size_t>(attend.key_dim + attend.value_dim);
}

std::size_t LayerTables::bytes() const noexcept {
  std::size_t sum = 0;
  for (const DeviceMemory& memory : memory_) sum += memory.bytes();
  return sum;
}

void LayerTables::place(std::int32_t code_offset, std::int64_t row_halves) {
  for (std::int32_t& offset : group_offsets_) offset += code_offset;
  attend.row_layer_halves = append.row_layer_halves = encode.row_layer_halves = row_halves;
}

Status LayerTables::upload_offsets() {
  KVSPAN_TRY(attend.group_offsets, upload<std::int32_t>(group_offsets_));
  encode.group_offsets = attend.group_offsets;
  return {};
}

}  // namespace kvspan::cuda
