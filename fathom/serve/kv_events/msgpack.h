// Writes MessagePack (the specification at github.com/msgpack/msgpack, types nil, integer, float
// 64, string, array and map), each value in its shortest form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fathom::serve {

/// The caller writes as many values behind array() and map() as they say; a map's value is a key
/// and what belongs to it.
class MsgpackWriter {
 public:
  MsgpackWriter& nil();
  MsgpackWriter& unsigned_integer(uint64_t value);
  MsgpackWriter& integer(int64_t value);
  MsgpackWriter& number(double value);

  /// At most 2^32 - 1 bytes. The text should be UTF-8.
  MsgpackWriter& string(std::string_view text);
  MsgpackWriter& array(uint32_t size);
  MsgpackWriter& map(uint32_t size);

  /// What was written; the writer is empty afterwards.
  std::string take();

 private:
  void byte(uint64_t value) { out_ += static_cast<char>(value & 0xff); }

  // The low `bytes` bytes of a value, big end first.
  void big_endian(uint64_t value, int bytes);

  std::string out_;
};

}  // namespace fathom::serve
