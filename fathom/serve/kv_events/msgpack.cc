#include "fathom/serve/kv_events/msgpack.h"

#include <bit>
#include <utility>

namespace fathom::serve {

void MsgpackWriter::big_endian(uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
    byte(value >> shift);
}

MsgpackWriter& MsgpackWriter::nil() {
  byte(0xc0);
  return *this;
}

MsgpackWriter& MsgpackWriter::unsigned_integer(uint64_t value) {
  if (value < 0x80) {
    byte(value);
  } else if (value <= 0xff) {
    byte(0xcc);
    big_endian(value, 1);
  } else if (value <= 0xffff) {
    byte(0xcd);
    big_endian(value, 2);
  } else if (value <= 0xffffffff) {
    byte(0xce);
    big_endian(value, 4);
  } else {
    byte(0xcf);
    big_endian(value, 8);
  }
  return *this;
}

MsgpackWriter& MsgpackWriter::integer(int64_t value) {
  if (value >= 0) return unsigned_integer(static_cast<uint64_t>(value));
  const auto bits = static_cast<uint64_t>(value);  // two's complement
  if (value >= -32) {
    byte(bits);
  } else if (value >= INT8_MIN) {
    byte(0xd0);
    big_endian(bits, 1);
  } else if (value >= INT16_MIN) {
    byte(0xd1);
    big_endian(bits, 2);
  } else if (value >= INT32_MIN) {
    byte(0xd2);
    big_endian(bits, 4);
  } else {
    byte(0xd3);
    big_endian(bits, 8);
  }
  return *this;
}

MsgpackWriter& MsgpackWriter::number(double value) {
  byte(0xcb);
  big_endian(std::bit_cast<uint64_t>(value), 8);
  return *this;
}

MsgpackWriter& MsgpackWriter::string(std::string_view text) {
  if (text.size() < 32) {
    byte(0xa0 | text.size());
  } else if (text.size() <= 0xff) {
    byte(0xd9);
    big_endian(text.size(), 1);
  } else if (text.size() <= 0xffff) {
    byte(0xda);
    big_endian(text.size(), 2);
  } else {
    byte(0xdb);
    big_endian(text.size(), 4);
  }
  out_ += text;
  return *this;
}

MsgpackWriter& MsgpackWriter::array(uint32_t size) {
  if (size < 16) {
    byte(0x90 | size);
  } else if (size <= 0xffff) {
    byte(0xdc);
    big_endian(size, 2);
  } else {
    byte(0xdd);
    big_endian(size, 4);
  }
  return *this;
}

MsgpackWriter& MsgpackWriter::map(uint32_t size) {
  if (size < 16) {
    byte(0x80 | size);
  } else if (size <= 0xffff) {
    byte(0xde);
    big_endian(size, 2);
  } else {
    byte(0xdf);
    big_endian(size, 4);
  }
  return *this;
}

std::string MsgpackWriter::take() {
  return std::exchange(out_, {});
}

}  // namespace fathom::serve
