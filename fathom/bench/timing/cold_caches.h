// How calls find their operands: in no cache, as a model does, which walks through gigabytes of
// weights between two uses of the same ones.
#pragma once

#include <cstdint>

#include "fathom/base/status.h"
#include "fathom/device/memory.h"
#include "fathom/os/thread_pool.h"

namespace fathom {

/// How one case is kept out of the caches.
struct ColdPlan {
  int copies = 1;      ///< calls walk through so many copies of the operands
  bool sweep = false;  ///< other memory is read before each call
};

/// `touched` bytes of a call, `copy` bytes of a copy of its operands, `cache` bytes of the last
/// cache. A call that touches twice the cache needs nothing; else copies, as many as are touched
/// twice the cache together; where they would take much memory (a call that reads a small part of a
/// large operand), a sweep.
ColdPlan cold_plan(int64_t touched, int64_t copy, int64_t cache);

/// Bytes of the last cache that a thread sees, or a guess where the system does not tell.
int64_t last_cache_bytes();

/// Memory that is read in order to push everything else out of the caches.
class CacheSweep {
 public:
  /// Reads twice the last cache with all threads. Errors: OutOfMemory at the first call.
  Status run(ThreadPool& pool);

 private:
  Buffer buffer_;
};

}  // namespace fathom
