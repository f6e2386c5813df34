// Replaces operator new of a test program by one that counts. A file of its own, so that the
// compiler does not pair an inlined half of it with the library's other half. Sanitizers bring
// their own operators, which stay: there the count is always zero.
#include "tests/support/allocation_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> g_allocations{0};

}  // namespace

namespace fathom {

int64_t allocation_count() {
  return g_allocations.load();
}

}  // namespace fathom

#ifndef FATHOM_SANITIZED
void* operator new(size_t size) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(size == 0 ? 1 : size)) return p;
  std::abort();
}

void operator delete(void* p) noexcept {
  std::free(p);
}

void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
#endif
