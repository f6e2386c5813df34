// The bytes of page.html; cmake/serve.cmake writes their source into the build folder.
#pragma once

#include <cstddef>

namespace fathom::serve {

extern const unsigned char kPageBytes[];
extern const size_t kPageSize;

}  // namespace fathom::serve
