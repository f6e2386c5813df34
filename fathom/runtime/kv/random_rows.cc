#include "fathom/runtime/kv/random_rows.h"

#include <cstring>

#include "fathom/base/check.h"
#include "fathom/base/rng.h"
#include "fathom/base/str_cat.h"

namespace fathom {
namespace {

// The bits of one number in the format of a field.
uint32_t random_bits(const PageField& field, Rng& rng) {
  const uint32_t random = rng.next_u32();
  const bool scale = field.name == "scales";
  switch (field.format) {
    case Format::kF32:
      return (random & (scale ? 0x007FFFFFu : 0x807FFFFFu)) | 0x3F800000u;
    case Format::kBf16:
      return (random & 0x807Fu) | 0x3F80u;
    case Format::kE4m3:
      return (random & (scale ? 0x07u : 0x87u)) | 0x38u;
    case Format::kUe8m0:
      return 127 + (random & 1);
    case Format::kU8:  // two codes of e2m1
      return random & 0xFFu;
    default:
      FATHOM_CHECK(false, str_cat("no random rows of ", format_name(field.format)));
      return 0;
  }
}

}  // namespace

std::vector<std::byte> random_pages(const CacheGroup& group, int64_t pages, uint64_t seed) {
  const PageCodec& codec = group.codec;
  std::vector<std::byte> out(static_cast<size_t>(pages * codec.page_bytes(group.rows)));
  Rng rng(seed);
  for (size_t f = 0; f < codec.fields.size(); ++f) {
    const View v = codec.view(f, out.data(), pages, group.rows);
    const int64_t element = element_bytes(v.format);
    for (int64_t page = 0; page < pages; ++page) {
      for (int64_t row = 0; row < group.rows; ++row) {
        std::byte* to =
            static_cast<std::byte*>(v.data) + (page * v.stride(0) + row * v.stride(1)) * element;
        for (int64_t i = 0; i < v.dim(2); ++i) {
          const uint32_t bits = random_bits(codec.fields[f], rng);
          std::memcpy(to + i * element, &bits, static_cast<size_t>(element));  // little-endian
        }
      }
    }
  }
  return out;
}

}  // namespace fathom
