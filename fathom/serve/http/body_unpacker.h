// Bodies in gzip (RFC 1952) and zstd (RFC 8878), unpacked piece by piece as they arrive.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/serve/http/request_rules.h"

namespace fathom::serve {

class BodyUnpacker {
 public:
  virtual ~BodyUnpacker() = default;

  /// Null for kNone. A library that cannot start gives OutOfMemory.
  static Result<std::unique_ptr<BodyUnpacker>> make(BodyCoding coding);

  /// Unpacks `packed` onto the end of `body`, never beyond `max_bytes` in all. Errors: Corrupt for
  /// what is not of the format (a zstd window above 8 MiB too); OutOfMemory when `max_bytes` would
  /// be passed, with `body` full up to them.
  virtual Status unpack(std::string_view packed, std::string& body, int64_t max_bytes) = 0;

  /// Corrupt if the packed body ended too early.
  virtual Status finish() const = 0;

  /// Bytes that unpacking itself holds now.
  virtual int64_t held_bytes() const = 0;
};

}  // namespace fathom::serve
