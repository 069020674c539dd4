/* SPDX-License-Identifier: Apache-2.0
 * An engine's side of kvspan on a CUDA device, in C: one factory, a cache on the device and one on
 * the host that read the same text, and a conversation that moves from the one to the other. The
 * "model" is a text of made-up activations (made_up_text.h). Ends with 77 where there is no device. Of CUDA it needs what any engine there has: memory of the
 * device.
 */
#include <cuda_runtime_api.h>
#include <kvspan/kvspan.h>
#include <kvspan/kvspan_cuda.h>
#include <kvspan/kvspan_moments.h>
#include <math.h>

#include "../embed/made_up_text.h"

enum { KV_HEADS = 2, QUERY_HEADS = 4, DIM = 64, TOKENS = 1024, BLOCK = 64 };
enum { KV_ROW = KV_HEADS * DIM, QUERY_ROW = QUERY_HEADS * DIM };

static float keys[TOKENS * KV_ROW], values[TOKENS * KV_ROW], queries[TOKENS * QUERY_ROW];
static int32_t positions[TOKENS];

/* Memory of the device with these numbers; NULL: none is left. */
static void* on_device(const float* numbers, size_t count) {
  void* memory = NULL;
  if (cudaMalloc(&memory, count * sizeof *numbers) != cudaSuccess) return NULL;
  if (numbers == NULL) return memory;
  return cudaMemcpy(memory, numbers, count * sizeof *numbers, cudaMemcpyHostToDevice) == cudaSuccess
             ? memory
             : NULL;
}

/* The same block of the text for a sequence of the device and a cache of the host, and how far
 * their answers are apart. */
static int step(kvspan_cuda* device, int32_t sequence, kvspan_cache* host,
                const float* device_text[3], float* device_out, int at, double* error,
                double* energy) {
  static float ours[BLOCK * QUERY_ROW], theirs[BLOCK * QUERY_ROW];
  const kvspan_cuda_step steps = {sizeof steps, sequence, BLOCK};
  kvspan_cuda_rows rows[3];
  memset(rows, 0, sizeof rows);
  for (int i = 0; i < 3; ++i) {
    rows[i].struct_size = sizeof rows[i];
    rows[i].data = device_text[i] + (size_t)at * (i < 2 ? KV_ROW : QUERY_ROW);
    rows[i].number = KVSPAN_F32;
  }
  const kvspan_cuda_out out = {.struct_size = sizeof out, .data = device_out, .number = KVSPAN_F32};
  if (failed(kvspan_cuda_append(device, 0, &steps, 1, &rows[0], &rows[1], NULL)) ||
      failed(kvspan_cuda_attend(device, 0, &steps, 1, &rows[2], &out, NULL)) ||
      failed(kvspan_cuda_settle(device, 0, &steps, 1, NULL)) ||
      cudaMemcpy(ours, device_out, sizeof ours, cudaMemcpyDeviceToHost) != cudaSuccess) {
    return 1;
  }
  if (failed(kvspan_append(host, 0, BLOCK, KVSPAN_F32, keys + at * KV_ROW, values + at * KV_ROW,
                           positions + at)) ||
      failed(kvspan_attend(host, 0, BLOCK, KVSPAN_F32, queries + at * QUERY_ROW, positions + at,
                           theirs)) ||
      failed(kvspan_settle(host, 0))) {
    return 1;
  }
  for (int i = 0; i < BLOCK * QUERY_ROW; ++i) {
    *error += (double)(ours[i] - theirs[i]) * (ours[i] - theirs[i]);
    *energy += (double)theirs[i] * theirs[i];
  }
  return 0;
}

int main(void) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    printf("no CUDA device\n");
    return 77;
  }
  double angles[DIM / 2];
  for (int i = 0; i < DIM / 2; ++i) angles[i] = pow(10000.0, -2.0 * i / DIM);
  kvspan_layer layer = {.struct_size = sizeof layer,
                        .query_heads = QUERY_HEADS,
                        .kv_heads = KV_HEADS,
                        .key_dim = DIM,
                        .value_dim = DIM,
                        .logit_scale = 1.0f,
                        .rope_dims = DIM,
                        .rope_pairs = KVSPAN_ROPE_HALVES,
                        .rope_angles = angles};
  fill_text(TOKENS, KV_HEADS, QUERY_HEADS, DIM, keys, values, queries, positions);

  kvspan_moments_options gather = {.struct_size = sizeof gather,
                                   .layers = &layer,
                                   .layer_count = 1,
                                   .window = TOKENS,
                                   .tokens = TOKENS,
                                   .block = TOKENS};
  kvspan_moments* moments = NULL;
  bytes calibration = {0}, saved = {0}, again = {0};
  if (failed(kvspan_moments_create(&gather, &moments)) ||
      failed(kvspan_moments_add(moments, 0, TOKENS, KVSPAN_F32, keys, values, queries, positions,
                                NULL, 0)) ||
      failed(kvspan_moments_finish(moments, "made up", "0", take, &calibration))) {
    return 1;
  }
  kvspan_moments_free(moments);
  kvspan_factory_options options = {.struct_size = sizeof options,
                                    .layers = &layer,
                                    .layer_count = 1,
                                    .recipe = "bands:quantizer=uniform,escape=0,bits=3",
                                    .calibration = calibration.data,
                                    .calibration_size = calibration.size};
  kvspan_factory* factory = NULL;
  kvspan_cache *host = NULL, *moved = NULL;
  if (failed(kvspan_factory_create(&options, &factory)) || failed(kvspan_make(factory, 2, &host))) {
    return 1;
  }

  const kvspan_cuda_options on_gpu = {.struct_size = sizeof on_gpu,
                                      .budget_bytes = (size_t)64 << 20,
                                      .max_sequences = 4,
                                      .max_tokens = TOKENS};
  kvspan_cuda* device = NULL;
  int32_t first = -1, second = -1, third = -1, tokens = 0;
  const float* text[3] = {on_device(keys, TOKENS * KV_ROW), on_device(values, TOKENS * KV_ROW),
                          on_device(queries, TOKENS * QUERY_ROW)};
  float* out = on_device(NULL, BLOCK * QUERY_ROW);
  if (text[0] == NULL || text[1] == NULL || text[2] == NULL || out == NULL) return 1;
  if (failed(kvspan_cuda_create(factory, &on_gpu, &device)) ||
      failed(kvspan_cuda_add(device, &first))) {
    return 1;
  }
  double error = 0.0, energy = 0.0;
  for (int at = 0; at < TOKENS - 2 * BLOCK; at += BLOCK) {
    if (step(device, first, host, text, out, at, &error, &energy)) return 1;
  }

  /* What the device has read goes on on the host, and what the host has read on the device. */
  if (failed(kvspan_cuda_save(device, first, take, &saved, NULL)) ||
      failed(kvspan_load(factory, 2, saved.data, saved.size, &moved)) ||
      failed(kvspan_save(moved, take, &again)) ||
      failed(kvspan_cuda_load(device, again.data, again.size, NULL, &second))) {
    return 1;
  }
  const int same = saved.size == again.size && memcmp(saved.data, again.data, saved.size) == 0;
  const int last = TOKENS - 2 * BLOCK;
  if (step(device, second, moved, text, out, last, &error, &energy)) return 1;

  kvspan_bytes held = {.struct_size = sizeof held};
  int32_t least = 0;
  if (failed(kvspan_cuda_fork(device, second, NULL, &third)) ||
      failed(kvspan_cuda_least_tokens(device, third, &least)) ||
      failed(kvspan_cuda_truncate(device, third, last)) ||
      failed(kvspan_cuda_tokens(device, third, &tokens)) ||
      failed(kvspan_cuda_get_bytes(device, second, &held)) ||
      failed(kvspan_cuda_remove(device, first))) {
    return 1;
  }
  /* A wrong argument is answered, not followed. */
  const int refused = kvspan_cuda_remove(device, first) == KVSPAN_NOT_FOUND &&
                      kvspan_cuda_truncate(device, third, least - 1) == KVSPAN_INVALID_ARGUMENT;
  const double apart = sqrt(error / energy);
  printf(
      "device and host differ by %.2f%%; saved in %zu bytes, %s; %d of %d tokens after a cut; %zu "
      "bytes, %zu in use\n",
      100.0 * apart, saved.size, same ? "the same by both" : "DIFFERENT", (int)tokens, last + BLOCK,
      held.total, kvspan_cuda_used_bytes(device));
  kvspan_cuda_free(device);
  kvspan_free(host);
  kvspan_free(moved);
  kvspan_factory_free(factory);
  for (int i = 0; i < 3; ++i) cudaFree((void*)text[i]);
  cudaFree(out);
  free(calibration.data);
  free(saved.data);
  free(again.data);
  return same && refused && tokens == last && apart < 0.1 ? 0 : 1;
}
