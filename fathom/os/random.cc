#include "fathom/os/random.h"

#include <algorithm>
#include <cerrno>
#include <sys/random.h>

#include "fathom/base/check.h"

namespace fathom {

void fill_unguessable(std::span<uint8_t> bytes) {
  // Requests of at most 256 bytes are neither cut nor interrupted once the generator is ready.
  constexpr size_t kPiece = 256;
  while (!bytes.empty()) {
    const size_t size = std::min(bytes.size(), kPiece);
    const ssize_t got = getrandom(bytes.data(), size, 0);
    if (got < 0 && errno == EINTR) continue;
    FATHOM_CHECK(got > 0, "getrandom failed: the kernel has no random numbers");
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
}

}  // namespace fathom
