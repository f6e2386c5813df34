#include <utility>

#include "fathom/device/side_streams.h"

namespace fathom {

Result<SideStream> SideStream::create() {
  FATHOM_ASSIGN(Stream stream, Stream::create());
  FATHOM_ASSIGN(Event fork, Event::create());
  FATHOM_ASSIGN(Event join, Event::create());
  return SideStream{.stream = std::move(stream), .fork = std::move(fork), .join = std::move(join)};
}

Result<SideStreams> create_side_streams() {
  FATHOM_ASSIGN(SideStream first, SideStream::create());
  FATHOM_ASSIGN(SideStream second, SideStream::create());
  return SideStreams{std::move(first), std::move(second)};
}

}  // namespace fathom
