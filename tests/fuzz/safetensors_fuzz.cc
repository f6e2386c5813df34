// F1: the header of a safetensors file. The input is taken as a whole file, and once more as the
// JSON of a header whose data section has about the right size, which gets past the length.
// Oracles: a second, naive validator gives the same verdict and the same tensors; what is accepted
// is written back and reads the same.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fathom/text/utf8.h"
#include "fathom/weights/checkpoint/safetensors.h"

namespace {

using fathom::SafetensorsHeader;
using fathom::TensorEntry;

void require(bool condition, const char* what, const std::string& detail = {}) {
  if (condition) return;
  std::fprintf(stderr, "%s: %s\n", what, detail.c_str());
  std::abort();
}

struct NaiveTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
};

struct NaiveHeader {
  std::vector<NaiveTensor> tensors;
  std::map<std::string, std::string> metadata;
  bool has_other_members = false;  ///< of a tensor, which are ignored whatever they hold
};

// Reads the subset of JSON that a header may consist of: objects, strings, and arrays of integers.
// Everything else would be refused anyway, but for further members of a tensor, where it stops too.
// Returns false at the first thing that does not fit.
class NaiveReader {
 public:
  explicit NaiveReader(std::string_view text) : text_(text) {}

  bool read(NaiveHeader& out) {
    if (!text_.starts_with('{') || !fathom::is_valid_utf8(text_)) return false;
    const bool ok = object([&](const std::string& name) {
      if (name == "__metadata__") {
        return object([&](const std::string& key) { return string(out.metadata[key]); });
      }
      if (name.empty() || name.size() > 1024) return false;
      out.tensors.push_back({});
      out.tensors.back().name = name;
      return tensor(out.tensors.back(), out.has_other_members);
    });
    return ok && text_.find_first_not_of(' ', at_) == std::string_view::npos;
  }

 private:
  void blanks() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos)
      ++at_;
  }

  bool take(char c) {
    blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  template <class Member>
  bool object(Member member) {
    std::set<std::string> keys;
    if (!take('{')) return false;
    if (take('}')) return true;
    do {
      std::string key;
      if (!string(key) || !keys.insert(key).second || !take(':') || !member(key)) return false;
    } while (take(','));
    return take('}');
  }

  bool integers(std::vector<int64_t>& out) {
    if (!take('[')) return false;
    if (take(']')) return true;
    do {
      int64_t value = 0;
      if (!integer(value)) return false;
      out.push_back(value);
    } while (take(','));
    return take(']');
  }

  bool integer(int64_t& out) {
    blanks();
    const bool negative = at_ < text_.size() && text_[at_] == '-';
    if (negative) ++at_;
    const size_t first = at_;
    __int128 value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' && at_ - first < 25) {
      value = 10 * value + (text_[at_++] - '0');
    }
    const size_t digits = at_ - first;
    if (digits == 0 || (digits > 1 && text_[first] == '0')) return false;
    // A fraction or an exponent makes it no integer.
    if (at_ < text_.size() && std::string_view(".eE0123456789").find(text_[at_]) != text_.npos) {
      return false;
    }
    if (negative) value = -value;
    if (value < INT64_MIN || value > INT64_MAX) return false;
    out = static_cast<int64_t>(value);
    return true;
  }

  bool hex4(char32_t& out) {
    out = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      if (at_ >= text_.size()) return false;
      const char c = text_[at_];
      if (c >= '0' && c <= '9') {
        out = 16 * out + static_cast<char32_t>(c - '0');
      } else if (c >= 'a' && c <= 'f') {
        out = 16 * out + static_cast<char32_t>(c - 'a' + 10);
      } else if (c >= 'A' && c <= 'F') {
        out = 16 * out + static_cast<char32_t>(c - 'A' + 10);
      } else {
        return false;
      }
    }
    return true;
  }

  bool escape(std::string& out) {
    if (at_ >= text_.size()) return false;
    const char c = text_[at_++];
    const size_t simple = std::string_view("\"\\/bfnrt").find(c);
    if (simple != std::string_view::npos) {
      out.push_back("\"\\/\b\f\n\r\t"[simple]);
      return true;
    }
    char32_t code = 0;
    if (c != 'u' || !hex4(code)) return false;
    if (code >= 0xdc00 && code <= 0xdfff) return false;
    if (code >= 0xd800 && code <= 0xdbff) {
      char32_t low = 0;
      if (text_.substr(at_, 2) != "\\u") return false;
      at_ += 2;
      if (!hex4(low) || low < 0xdc00 || low > 0xdfff) return false;
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    fathom::append_utf8(out, code);
    return true;
  }

  bool string(std::string& out) {
    if (!take('"')) return false;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') {
        out.push_back(c);
      } else if (!escape(out)) {
        return false;
      }
    }
    return false;
  }

  bool tensor(NaiveTensor& out, bool& has_other_members) {
    int seen = 0;
    std::vector<int64_t> offsets;
    const bool ok = object([&](const std::string& key) {
      ++seen;
      if (key == "dtype") return string(out.dtype);
      if (key == "shape") return integers(out.shape);
      if (key == "data_offsets") return integers(offsets);
      has_other_members = true;
      return false;
    });
    if (!ok || seen != 3 || offsets.size() != 2) return false;
    out.begin = offsets[0];
    out.end = offsets[1];
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

int64_t naive_element_bytes(const std::string& dtype) {
  static const std::map<std::string, int64_t> kBytes = {
      {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
      {"I8", 1},  {"U8", 1},  {"I32", 4},  {"I64", 8},     {"BOOL", 1},    {"F64", 8}};
  const auto found = kBytes.find(dtype);
  return found == kBytes.end() ? 0 : found->second;
}

bool naive_size_fits(const NaiveTensor& tensor) {
  const __int128 limit = __int128{1} << 40;
  __int128 bytes = naive_element_bytes(tensor.dtype);
  __int128 bound = bytes;
  if (bytes == 0 || tensor.shape.size() > 8) return false;
  for (const int64_t dim : tensor.shape) {
    if (dim < 0 || dim > limit) return false;
    bytes *= dim;
    bound *= dim == 0 ? 1 : dim;
    if (bound > limit) return false;
  }
  return tensor.begin >= 0 && tensor.begin <= tensor.end && tensor.end - tensor.begin == bytes;
}

// Whether the tensors cover [0, data_bytes), each byte once.
bool naive_tiles(const NaiveHeader& header, int64_t data_bytes) {
  std::set<std::pair<int64_t, int64_t>> ranges;
  for (const NaiveTensor& tensor : header.tensors) {
    const bool is_empty = tensor.begin == tensor.end;
    if (!ranges.insert({tensor.begin, tensor.end}).second && !is_empty) return false;
  }
  int64_t covered = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != covered) return false;
    covered = end;
  }
  return covered == data_bytes;
}

bool naive_accepts(std::string_view json, int64_t data_bytes, NaiveHeader& header) {
  if (!NaiveReader(json).read(header)) return false;
  for (const NaiveTensor& tensor : header.tensors) {
    if (!naive_size_fits(tensor)) return false;
  }
  return naive_tiles(header, data_bytes);
}

void check_same(const SafetensorsHeader& header, const NaiveHeader& naive) {
  require(header.tensors.size() == naive.tensors.size(), "number of tensors");
  std::map<std::string, const TensorEntry*> by_name;
  for (const TensorEntry& tensor : header.tensors)
    by_name[tensor.name] = &tensor;
  for (const NaiveTensor& tensor : naive.tensors) {
    const TensorEntry* entry = by_name[tensor.name];
    require(entry != nullptr, "missing tensor", tensor.name);
    require(fathom::dtype_name(entry->dtype) == tensor.dtype, "dtype", tensor.name);
    require(entry->shape == tensor.shape, "shape", tensor.name);
    require(entry->begin == header.data_begin + tensor.begin, "begin", tensor.name);
    require(entry->end == header.data_begin + tensor.end, "end", tensor.name);
  }
  const std::map<std::string, std::string> metadata(header.metadata.begin(), header.metadata.end());
  require(metadata == naive.metadata, "metadata");
}

void check_written_back(const SafetensorsHeader& header) {
  const std::string text = fathom::format_safetensors_header(header.tensors, header.metadata);
  const int64_t data_bytes = header.file_size - header.data_begin;
  const auto size = static_cast<int64_t>(text.size()) + data_bytes;
  const auto length =
      fathom::parse_header_length(std::string_view(text).substr(0, 8), size, "back");
  require(length.ok() && *length == static_cast<int64_t>(text.size()) - 8, "written length");
  const auto again =
      fathom::parse_safetensors_header(std::string_view(text).substr(8), size, "back");
  require(again.ok(), "written header", again.status().message());
  require(again->metadata == header.metadata, "written metadata");
  require(again->tensors.size() == header.tensors.size(), "written tensors");
  const int64_t shift = again->data_begin - header.data_begin;
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    TensorEntry expected = header.tensors[i];
    expected.begin += shift;
    expected.end += shift;
    require(again->tensors[i] == expected, "written tensor", expected.name);
  }
}

void check_header(std::string_view json, int64_t data_bytes) {
  const auto file_size = 8 + static_cast<int64_t>(json.size()) + data_bytes;
  const auto header = fathom::parse_safetensors_header(json, file_size, "fuzz");
  NaiveHeader naive;
  const bool accepted = naive_accepts(json, data_bytes, naive);
  if (naive.has_other_members) {
    if (header.ok()) check_written_back(*header);
    return;
  }
  require(accepted == header.ok(), "verdicts differ",
          header.ok() ? "the naive validator refuses" : header.status().message());
  if (!header.ok()) return;
  check_same(*header, naive);
  check_written_back(*header);
}

void check_file(std::string_view file) {
  const auto size = static_cast<int64_t>(file.size());
  const auto length = fathom::parse_header_length(file.substr(0, 8), size, "fuzz");
  unsigned __int128 naive_length = 0;
  for (size_t i = 8; i-- > 0 && file.size() >= 8;) {
    naive_length = 256 * naive_length + static_cast<unsigned char>(file[i]);
  }
  const bool fits =
      file.size() >= 8 && naive_length <= 100'000'000 && naive_length <= file.size() - 8;
  require(fits == length.ok(), "verdicts on the length differ");
  if (!length.ok()) return;
  require(*length == static_cast<int64_t>(naive_length), "length");
  check_header(file.substr(8, static_cast<size_t>(*length)), size - 8 - *length);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  check_file(input);
  NaiveHeader naive;
  int64_t end = 0;
  if (NaiveReader(input).read(naive)) {
    for (const NaiveTensor& tensor : naive.tensors)
      end = std::max(end, tensor.end);
    end = std::min(end, int64_t{1} << 50);
  }
  check_header(input, 0);
  check_header(input, end);
  check_header(input, end + 1);
  return 0;
}
