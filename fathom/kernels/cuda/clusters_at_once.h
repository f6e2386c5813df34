// How many clusters of a kernel's blocks a GPU has room for at once. Fewer than its multiprocessors
// say: the groups that they lie in differ in size. Included by .cu files only.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include <cuda_runtime.h>

namespace fathom::cuda {

/// A kernel's blocks, as far as they decide how many there is room for.
struct ClusterNeeds {
  const void* kernel = nullptr;
  int threads = 0;  ///< of a block
  int64_t shared_bytes = 0;
  int cluster = 1;  ///< blocks; more than 8 are a size that not every GPU has
};

/// 0 if the GPU runs no cluster of that size, or there is none.
inline int64_t find_clusters_at_once(int device, const ClusterNeeds& needs) {
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) {
    cudaGetLastError();  // it stays for the next call otherwise
    return 0;
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(needs.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(needs.cluster));
  config.blockDim = dim3(static_cast<unsigned>(needs.threads));
  config.dynamicSmemBytes = static_cast<size_t>(needs.shared_bytes);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  const auto set = [&](cudaFuncAttribute what, int value) {
    return cudaFuncSetAttribute(needs.kernel, what, value) == cudaSuccess;
  };
  const bool found =
      set(cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(needs.shared_bytes)) &&
      (needs.cluster <= 8 || set(cudaFuncAttributeNonPortableClusterSizeAllowed, 1)) &&
      cudaOccupancyMaxActiveClusters(&clusters, needs.kernel, &config) == cudaSuccess;
  if (!found) cudaGetLastError();
  cudaSetDevice(before);
  return found ? clusters : 0;
}

/// The same, asked once a thread; 0 for a GPU that is described (-1), without a call to the driver.
inline int64_t clusters_at_once(int device, const ClusterNeeds& needs) {
  if (device < 0) return 0;
  using Key = std::tuple<const void*, int, int64_t, int>;
  static thread_local std::map<Key, int64_t> known;
  const Key key{needs.kernel, device, needs.shared_bytes, needs.cluster};
  const auto it = known.find(key);
  if (it != known.end()) return it->second;
  return known.emplace(key, find_clusters_at_once(device, needs)).first->second;
}

}  // namespace fathom::cuda
