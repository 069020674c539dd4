// SPDX-License-Identifier: Apache-2.0
#include "cuda/graph_branch.h"

#include <vector>

namespace kvspan::cuda {
namespace {

// The nodes that the next one on a stream follows, and how.
struct Follows {
  std::vector<cudaGraphNode_t> nodes;
  std::vector<cudaGraphEdgeData> edges;

  void add(const Follows& other) {
    nodes.insert(nodes.end(), other.nodes.begin(), other.nodes.end());
    edges.insert(edges.end(), other.edges.begin(), other.edges.end());
  }
};

#if CUDART_VERSION >= 13000

cudaError_t read(cudaStream_t stream, Follows& follows) {
  cudaStreamCaptureStatus status{};
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  const cudaError_t error =
      cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, &edges, &count);
  if (error != cudaSuccess) return error;
  follows.nodes.assign(nodes, nodes + count);
  follows.edges.assign(count, cudaGraphEdgeData{});
  if (edges != nullptr) follows.edges.assign(edges, edges + count);
  return cudaSuccess;
}

// Kernels may be followed before they have ended.
void overlap(Follows& follows) {
  for (std::size_t i = 0; i < follows.nodes.size(); ++i) {
    cudaGraphNodeType type{};
    if (cudaGraphNodeGetType(follows.nodes[i], &type) != cudaSuccess ||
        type != cudaGraphNodeTypeKernel)
      continue;
    follows.edges[i] = {};
    follows.edges[i].from_port = cudaGraphKernelNodePortProgrammatic;
    follows.edges[i].type = cudaGraphDependencyTypeProgrammatic;
  }
}

cudaError_t follow(cudaStream_t stream, Follows& follows) {
  return cudaStreamUpdateCaptureDependencies(stream, follows.nodes.data(), follows.edges.data(),
                                             follows.nodes.size(),
                                             cudaStreamSetCaptureDependencies);
}

#else  // kernels begin when those before have ended

cudaError_t read(cudaStream_t, Follows&) {
  return cudaSuccess;
}
void overlap(Follows&) {}
cudaError_t follow(cudaStream_t, Follows&) {
  return cudaSuccess;
}

#endif

}  // namespace

GraphBranch::~GraphBranch() {
  for (const cudaEvent_t event : {forked_, joined_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

cudaError_t GraphBranch::open() {
  int low = 0, high = 0;
  cudaError_t error = cudaDeviceGetStreamPriorityRange(&low, &high);
  if (error == cudaSuccess)
    error = cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, low);
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming);
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&joined_, cudaEventDisableTiming);
  return error;
}

cudaError_t GraphBranch::fork(cudaStream_t from, cudaStream_t& branch) {
  branch = stream_;
  Follows before;
  cudaError_t error = read(from, before);
  if (error == cudaSuccess) error = cudaEventRecord(forked_, from);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(stream_, forked_, 0);
  overlap(before);
  return error == cudaSuccess && !before.nodes.empty() ? follow(stream_, before) : error;
}

cudaError_t GraphBranch::join(cudaStream_t into) {
  Follows before, branch;
  cudaError_t error = read(into, before);
  if (error == cudaSuccess) error = read(stream_, branch);
  if (error == cudaSuccess) error = cudaEventRecord(joined_, stream_);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(into, joined_, 0);
  overlap(branch);
  before.add(branch);
  return error == cudaSuccess && !before.nodes.empty() ? follow(into, before) : error;
}

}  // namespace kvspan::cuda
