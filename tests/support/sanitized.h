#pragma once

namespace fathom {

/// Whether this is a build with sanitizers, a tenth as fast: tests that look for wrong values by
/// many repeats make a few there, which reach the same code.
#ifdef FATHOM_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace fathom
