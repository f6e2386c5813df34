#include <utility>

#include "fathom/device/stream.h"

namespace fathom {

Result<SideStream> SideStream::create() {
  FATHOM_ASSIGN(Stream stream, Stream::create());
  FATHOM_ASSIGN(Event fork, Event::create());
  FATHOM_ASSIGN(Event join, Event::create());
  return SideStream{.stream = std::move(stream), .fork = std::move(fork), .join = std::move(join)};
}

}  // namespace fathom
