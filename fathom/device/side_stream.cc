#include <utility>

#include "fathom/device/stream.h"

namespace fathom {
namespace {

Result<SideStream> create_one() {
  FATHOM_ASSIGN(Stream stream, Stream::create());
  FATHOM_ASSIGN(Event fork, Event::create());
  FATHOM_ASSIGN(Event join, Event::create());
  return SideStream{.stream = std::move(stream), .fork = std::move(fork), .join = std::move(join)};
}

}  // namespace

Result<SideStreams> SideStreams::create() {
  FATHOM_ASSIGN(SideStream first, create_one());
  FATHOM_ASSIGN(SideStream second, create_one());
  return SideStreams{{std::move(first), std::move(second)}};
}

}  // namespace fathom
