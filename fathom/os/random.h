// Random bytes of the operating system, for what nobody may guess. Random numbers that can be made
// again are in base/rng.h.
#pragma once

#include <cstdint>
#include <span>

namespace fathom {

/// Fills `bytes` from the generator of the kernel. Thread-safe.
void fill_unguessable(std::span<uint8_t> bytes);

}  // namespace fathom
