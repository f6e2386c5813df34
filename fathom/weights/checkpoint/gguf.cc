#include "fathom/weights/checkpoint/gguf.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "fathom/base/hint.h"
#include "fathom/base/str_cat.h"
#include "fathom/os/file.h"
#include "fathom/weights/checkpoint/safetensors.h"

namespace fathom {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kString = 8;
constexpr uint64_t kArray = 9;

// Bytes of a value by its type; 0 for a string, an array and a type that is not known.
uint64_t bytes_of(uint64_t type) {
  constexpr uint64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kBytes) ? kBytes[type] : 0;
}

// Reads from the front; what is beyond the end is nothing.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : left_(bytes) {}

  std::optional<std::string_view> take(uint64_t count) {
    if (count > left_.size()) return std::nullopt;
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }

  std::optional<uint64_t> integer(size_t bytes) {  // little endian
    const auto taken = take(bytes);
    if (!taken) return std::nullopt;
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i)
      value |= uint64_t{static_cast<unsigned char>((*taken)[i])} << (8 * i);
    return value;
  }

  std::optional<std::string_view> string() {
    const auto length = integer(8);
    return length ? take(*length) : std::nullopt;
  }

  // False where the value is not whole. An array of arrays is none that the format's files have.
  bool skip(uint64_t type) {
    if (type == kString) return string().has_value();
    if (type != kArray) return bytes_of(type) > 0 && take(bytes_of(type)).has_value();
    const auto element = integer(4);
    const auto count = integer(8);
    if (!element || !count) return false;
    if (*element != kString) {
      const uint64_t size = bytes_of(*element);
      return size > 0 && *count <= left_.size() / size && take(*count * size).has_value();
    }
    for (uint64_t i = 0; i < *count; ++i) {
      if (!string()) return false;
    }
    return true;
  }

 private:
  std::string_view left_;
};

}  // namespace

// The header: magic, version (u32), number of tensors (u64), number of pairs (u64); a pair is a key
// (u64 and bytes), a type (u32) and a value. Source: ggml/docs/gguf.md of ggml-org/ggml.
std::string gguf_architecture(std::string_view first_bytes) {
  Cursor in(first_bytes);
  if (in.take(kMagic.size()) != kMagic || !in.integer(4) || !in.integer(8)) return {};
  const uint64_t pairs = in.integer(8).value_or(0);
  for (uint64_t i = 0; i < pairs; ++i) {
    const auto key = in.string();
    const auto type = in.integer(4);
    if (!key || !type) return {};
    if (*key == "general.architecture" && *type == kString)
      return std::string(in.string().value_or(""));
    if (!in.skip(*type)) return {};
  }
  return {};
}

Status refuse_gguf(const std::string& path) {
  constexpr int64_t kFirstBytes = 64 << 10;
  FATHOM_ASSIGN(const File file, File::open(path));
  std::string first(static_cast<size_t>(std::min(file.size(), kFirstBytes)), '\0');
  FATHOM_TRY(file.read_at(0, std::as_writable_bytes(std::span(first))));
  const std::string architecture = gguf_architecture(first);
  return unsupported(str_cat(path, ": is a GGUF file, of llama.cpp, ",
                             architecture.empty()
                                 ? std::string("whose architecture is not to be found")
                                 : str_cat("with architecture ", quoted(architecture)),
                             kHintMark,
                             "fathom reads checkpoints of Hugging Face: a directory with "
                             "config.json, tokenizer.json and "
                             "safetensors files, or ORG/NAME in the local cache"));
}

}  // namespace fathom
