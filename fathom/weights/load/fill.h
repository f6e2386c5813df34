// Filling a store, one way for every source of numbers and every device:
//
//   source    jobs of an item: numbers read or drawn, checked, brought into their layout
//             (checkpoint_jobs.h, random_jobs.h)
//   threads   share the units of a job and fill them in pieces that fit the staging
//   sink      gives the memory and brings it to the store (store_sink.h)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "fathom/os/thread_pool.h"
#include "fathom/weights/load/store_sink.h"
#include "fathom/weights/plan/weight_plan.h"

namespace fathom {

struct LoadOptions {
  /// Called now and then on the calling thread, with bytes of the store that are filled.
  std::function<void(int64_t done, int64_t total)> progress = {};
  /// Memory for reading, over all threads; of a plan for a GPU pinned memory besides.
  int64_t staging_bytes = 64ll << 20;
};

/// A part of the store that a job fills: unit u has the bytes [u * unit_bytes, (u + 1) *
/// unit_bytes) of it, the last one what is left of them.
struct JobPart {
  int64_t offset = 0;
  int64_t unit_bytes = 0;
  int64_t bytes = 0;
};

/// Memory of a thread that grows to the largest piece it reads.
class Staging {
 public:
  /// Pieces of memory of these sizes, valid until the next call.
  std::array<std::span<std::byte>, 3> take(const std::array<int64_t, 3>& bytes);

 private:
  std::vector<std::byte> memory_;
};

/// Units [begin, end) for one thread, and where their bytes go.
struct FillCall {
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<std::span<std::byte>> parts =
      {};                      ///< of these units, in the order of the job's parts
  Staging* staging = nullptr;  ///< of the calling thread
};

/// Units that any threads may fill, in any order.
struct FillJob {
  int64_t units = 0;
  std::vector<JobPart> parts = {};
  int64_t staged_bytes = 0;  ///< of a unit: what fill takes from the staging
  /// Not 0: the contents of the only part may repeat after so many bytes, a multiple of a unit.
  int64_t period = 0;
  std::function<Status(const FillCall&)> fill = {};
};

/// A source: the jobs of an item that has tensors. `index` is its place in the plan.
using JobSource = std::function<Result<std::vector<FillJob>>(const WeightItem& item, size_t index)>;

/// Fills everything that the plan has, in its order; absorbed copies are made of the kv_b before
/// them. Errors: those of source and sink; the first of several threads' is returned.
Status fill_store(const WeightPlan& plan,
                  const JobSource& source,
                  StoreSink& sink,
                  ThreadPool& pool,
                  const LoadOptions& options);

}  // namespace fathom
