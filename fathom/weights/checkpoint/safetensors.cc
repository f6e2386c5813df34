#include "fathom/weights/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <span>
#include <tuple>

#include "fathom/base/checked_math.h"
#include "fathom/base/str_cat.h"
#include "fathom/text/file_kind.h"
#include "fathom/text/json.h"
#include "fathom/text/json_writer.h"

namespace fathom {
namespace {

struct Dtype {
  std::string_view name;
  Format format;
};

constexpr std::array<Dtype, 12> kDtypes = {{{"F32", Format::kF32},
                                            {"F16", Format::kF16},
                                            {"BF16", Format::kBf16},
                                            {"F8_E4M3", Format::kE4m3},
                                            {"F8_E5M2", Format::kE5m2},
                                            {"F8_E8M0", Format::kUe8m0},
                                            {"I8", Format::kI8},
                                            {"U8", Format::kU8},
                                            {"I32", Format::kI32},
                                            {"I64", Format::kI64},
                                            {"BOOL", Format::kBool},
                                            {"F64", Format::kF64}}};

// Names of the container's format that no DeepSeek checkpoint uses.
constexpr std::array<std::string_view, 10> kForeignDtypes = {
    "I16", "U16", "U32", "U64", "C64", "F4", "F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"};

std::string dtype_names() {
  std::string names;
  for (const Dtype& dtype : kDtypes) {
    str_append(names, names.empty() ? "" : ", ");
    str_append(names, dtype.name);
  }
  return names;
}

std::string describe_byte(char c) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  if (byte > ' ' && byte < 0x7f) return str_cat('\'', c, '\'');
  return str_cat("byte 0x", kDigits[byte >> 4], kDigits[byte & 15]);
}

// Reads the members of one tensor's object. Offsets are those of the header until they are moved to
// the file's at the end.
class EntryParser {
 public:
  EntryParser(std::string_view what, const std::string& name, const SafetensorsHeader& header)
      : what_(what),
        name_(name),
        data_begin_(header.data_begin),
        data_bytes_(header.file_size - header.data_begin) {}

  Result<TensorEntry> parse(const Json& json) {
    if (!json.is_object()) return wrong("its value", "an object", json);
    TensorEntry entry;
    entry.name = name_;
    bool has_dtype = false;
    bool has_shape = false;
    bool has_offsets = false;
    for (const auto& [key, value] : json.members()) {
      if (key == "dtype") {
        FATHOM_TRY(parse_dtype(value, entry));
        has_dtype = true;
      } else if (key == "shape") {
        FATHOM_TRY(parse_shape(value, entry));
        has_shape = true;
      } else if (key == "data_offsets") {
        FATHOM_TRY(parse_offsets(value, entry));
        has_offsets = true;
      }
      // Other keys mean nothing, as to the reader of the format's authors.
    }
    if (!has_dtype) return error("has no dtype");
    if (!has_shape) return error("has no shape");
    if (!has_offsets) return error("has no data_offsets");
    FATHOM_TRY(check_size(entry));
    entry.begin += data_begin_;
    entry.end += data_begin_;
    return entry;
  }

 private:
  Status error(std::string_view text) const {
    return corrupt(str_cat(what_, ": tensor ", quoted(name_), ": ", text));
  }

  Status wrong(std::string_view part, std::string_view expected, const Json& found) const {
    return error(str_cat(part, " is ", found.kind_name(), ", expected ", expected));
  }

  Status parse_dtype(const Json& json, TensorEntry& entry) const {
    if (!json.is_string()) return wrong("dtype", "a string", json);
    const std::string& name = json.as_string();
    for (const Dtype& dtype : kDtypes) {
      if (dtype.name == name) {
        entry.dtype = dtype.format;
        return {};
      }
    }
    const std::string text = str_cat(what_, ": tensor ", quoted(name_), ": dtype ", quoted(name));
    if (std::find(kForeignDtypes.begin(), kForeignDtypes.end(), name) != kForeignDtypes.end()) {
      return unsupported(str_cat(text, " is not supported, expected one of ", dtype_names()));
    }
    return corrupt(str_cat(text, " is unknown, expected one of ", dtype_names()));
  }

  Status parse_shape(const Json& json, TensorEntry& entry) const {
    if (!json.is_array()) return wrong("shape", "an array", json);
    const auto rank = static_cast<int64_t>(json.items().size());
    if (rank > kMaxTensorDims) {
      return error(str_cat("shape has ", rank, " dimensions, expected at most ", kMaxTensorDims));
    }
    for (const Json& dim : json.items()) {
      if (!dim.is_int()) return wrong("a dimension of shape", "an integer", dim);
      if (dim.as_int() < 0 || dim.as_int() > kMaxDimSize) {
        return error(
            str_cat("a dimension of shape is ", dim.as_int(), ", expected 0 to ", kMaxDimSize));
      }
      entry.shape.push_back(dim.as_int());
    }
    return {};
  }

  Status parse_offsets(const Json& json, TensorEntry& entry) const {
    if (!json.is_array()) return wrong("data_offsets", "an array", json);
    if (json.items().size() != 2) {
      return error(str_cat("data_offsets has ", json.items().size(), " numbers, expected 2"));
    }
    for (const Json& offset : json.items()) {
      if (!offset.is_int()) return wrong("an offset", "an integer", offset);
    }
    entry.begin = json.items()[0].as_int();
    entry.end = json.items()[1].as_int();
    if (entry.begin < 0 || entry.begin > entry.end) {
      return error(
          str_cat("data_offsets [", entry.begin, ", ", entry.end, "], expected 0 <= begin <= end"));
    }
    if (entry.end > data_bytes_) {
      return error(str_cat("data_offsets [", entry.begin, ", ", entry.end,
                           "] end beyond the file, which has ", data_bytes_, " bytes of data"));
    }
    return {};
  }

  Status check_size(const TensorEntry& entry) const {
    const std::optional<int64_t> expected = tensor_bytes(entry.dtype, entry.shape);
    const std::string tensor = describe_tensor(entry.dtype, entry.shape);
    if (!expected) {
      return error(str_cat(tensor, " is larger than the limit of ", kMaxTensorBytes, " bytes"));
    }
    if (entry.bytes() == *expected) return {};
    return error(str_cat("data_offsets [", entry.begin, ", ", entry.end, "] span ", entry.bytes(),
                         " bytes, expected ", *expected, " for ", tensor));
  }

  std::string_view what_;
  const std::string& name_;
  int64_t data_begin_;
  int64_t data_bytes_;
};

Status parse_metadata(const Json& json, std::string_view what, SafetensorsHeader& header) {
  if (!json.is_object()) {
    return corrupt(str_cat(what, ": __metadata__ is ", json.kind_name(), ", expected an object"));
  }
  for (const auto& [key, value] : json.members()) {
    if (!value.is_string()) {
      return corrupt(str_cat(what, ": __metadata__ value of ", quoted(key), " is ",
                             value.kind_name(), ", expected a string"));
    }
    header.metadata.emplace_back(key, value.as_string());
  }
  return {};
}

// Every byte of the data section belongs to exactly one tensor.
Status check_tiling(const SafetensorsHeader& header, std::string_view what) {
  int64_t expected = header.data_begin;
  const TensorEntry* before = nullptr;
  for (const TensorEntry& entry : header.tensors) {
    if (entry.begin != expected) {
      const std::string after = before == nullptr
                                    ? str_cat("where the data begins")
                                    : str_cat("where tensor ", quoted(before->name), " ends");
      return corrupt(str_cat(what, ": tensor ", quoted(entry.name), ": begins at byte ",
                             entry.begin, ", expected ", expected, ", ", after,
                             entry.begin > expected ? " (a hole)" : " (an overlap)"));
    }
    expected = entry.end;
    before = &entry;
  }
  if (expected == header.file_size) return {};
  return corrupt(str_cat(what, ": the last tensor ends at byte ", expected,
                         ", expected the end of the file at ", header.file_size));
}

// A file that is no safetensors file at all is named, before its first bytes count as a length.
Status refuse_foreign(std::string_view first_bytes, std::string_view what) {
  constexpr auto kHeader = static_cast<size_t>(kHeaderLengthBytes);
  if (first_bytes.size() > kHeader && first_bytes[kHeader] == '{') return {};
  const std::string_view foreign = foreign_file(first_bytes);
  return foreign.empty() ? Status{} : corrupt(str_cat(what, ": ", foreign));
}

// The last byte of the JSON object, after which only the padding may come.
Status check_frame(std::string_view header, std::string_view what) {
  if (header.empty() || header.front() != '{') {
    return corrupt(str_cat(what, ": header begins with ",
                           header.empty() ? "nothing" : describe_byte(header.front()), " at byte ",
                           kHeaderLengthBytes, ", expected '{'"));
  }
  const size_t last = header.find_last_not_of(' ');
  if (header[last] == '}') return {};
  return corrupt(str_cat(what, ": header ends with ", describe_byte(header[last]), " at byte ",
                         kHeaderLengthBytes + static_cast<int64_t>(last),
                         ", expected '}' and spaces"));
}

}  // namespace

std::string_view dtype_name(Format format) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.format == format) return dtype.name;
  }
  FATHOM_CHECK(false, format_name(format));
  return {};
}

std::string describe_tensor(Format dtype, const std::vector<int64_t>& shape) {
  std::string text = str_cat(dtype_name(dtype), " [");
  for (size_t i = 0; i < shape.size(); ++i)
    str_append(text, str_cat(i > 0 ? ", " : "", shape[i]));
  text.push_back(']');
  return text;
}

std::string quoted(std::string_view name) {
  constexpr size_t kShown = 200;
  std::string text;
  append_json_string(text, name.substr(0, kShown), JsonCharset::kAscii);
  if (name.size() > kShown) text.append("...");
  return text;
}

std::optional<int64_t> tensor_bytes(Format dtype, const std::vector<int64_t>& shape) {
  if (static_cast<int64_t>(shape.size()) > kMaxTensorDims) return std::nullopt;
  int64_t bytes = format_info(dtype).bits / 8;
  bool is_empty = false;
  for (const int64_t dim : shape) {
    if (dim < 0 || dim > kMaxDimSize) return std::nullopt;
    is_empty = is_empty || dim == 0;
    const std::optional<int64_t> product = checked_mul(bytes, std::max<int64_t>(dim, 1));
    if (!product || *product > kMaxTensorBytes) return std::nullopt;
    bytes = *product;
  }
  return is_empty ? 0 : bytes;
}

Result<int64_t> parse_header_length(std::string_view first_bytes,
                                    int64_t file_size,
                                    std::string_view what) {
  if (file_size < kHeaderLengthBytes ||
      first_bytes.size() < static_cast<size_t>(kHeaderLengthBytes)) {
    return corrupt(str_cat(what, ": is ", file_size, " bytes long, expected at least ",
                           kHeaderLengthBytes, " for the header length"));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < static_cast<size_t>(kHeaderLengthBytes); ++i) {
    length |= uint64_t{static_cast<unsigned char>(first_bytes[i])} << (8 * i);
  }
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return corrupt(str_cat(what, ": header length at byte 0 is ", length, ", expected at most ",
                           kMaxHeaderBytes));
  }
  const int64_t available = file_size - kHeaderLengthBytes;
  if (static_cast<int64_t>(length) > available) {
    return corrupt(str_cat(what, ": header length at byte 0 is ", length, ", but only ", available,
                           " bytes follow it"));
  }
  return static_cast<int64_t>(length);
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view header,
                                                   int64_t file_size,
                                                   std::string_view what) {
  FATHOM_CHECK(static_cast<int64_t>(header.size()) <= file_size - kHeaderLengthBytes,
               "the header is longer than its file");
  FATHOM_TRY(check_frame(header, what));
  const JsonLimits limits{.max_depth = 8,
                          .max_bytes = kMaxHeaderBytes,
                          .max_string_bytes = kMaxMetadataValueBytes,
                          .max_keys = kMaxTensorsPerFile + 1};
  FATHOM_ASSIGN(const Json json, parse_json(header, limits, str_cat(what, ": header")));
  SafetensorsHeader out;
  out.data_begin = kHeaderLengthBytes + static_cast<int64_t>(header.size());
  out.file_size = file_size;
  for (const auto& [name, value] : json.members()) {
    if (name == "__metadata__") {
      FATHOM_TRY(parse_metadata(value, what, out));
      continue;
    }
    if (name.empty() || static_cast<int64_t>(name.size()) > kMaxTensorNameBytes) {
      return corrupt(str_cat(what, ": tensor ", quoted(name), ": name of ", name.size(),
                             " bytes, expected 1 to ", kMaxTensorNameBytes));
    }
    FATHOM_ASSIGN(TensorEntry entry, EntryParser(what, name, out).parse(value));
    out.tensors.push_back(std::move(entry));
  }
  if (static_cast<int64_t>(out.tensors.size()) > kMaxTensorsPerFile) {
    return corrupt(str_cat(what, ": header has ", out.tensors.size(), " tensors, expected at most ",
                           kMaxTensorsPerFile));
  }
  std::sort(out.tensors.begin(), out.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  FATHOM_TRY(check_tiling(out, what));
  return out;
}

Result<SafetensorsFile> open_safetensors(const std::string& path, Symlinks symlinks) {
  FATHOM_ASSIGN(File file, File::open(path, symlinks));
  constexpr int64_t kFirstBytes = 512;
  std::string first(static_cast<size_t>(std::min(file.size(), kFirstBytes)), '\0');
  FATHOM_TRY(file.read_at(0, std::as_writable_bytes(std::span(first))));
  FATHOM_TRY(refuse_foreign(first, path));
  FATHOM_ASSIGN(const int64_t length, parse_header_length(first, file.size(), path));
  std::string text(static_cast<size_t>(length), '\0');
  FATHOM_TRY(file.read_at(kHeaderLengthBytes, std::as_writable_bytes(std::span(text))));
  FATHOM_ASSIGN(SafetensorsHeader header, parse_safetensors_header(text, file.size(), path));
  return SafetensorsFile{std::move(file), std::move(header)};
}

std::string format_safetensors_header(
    const std::vector<TensorEntry>& tensors,
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  JsonWriter writer;
  writer.begin_object();
  if (!metadata.empty()) {
    writer.key("__metadata__").begin_object();
    for (const auto& [key, value] : metadata)
      writer.key(key).string(value);
    writer.end_object();
  }
  int64_t offset = 0;
  for (const TensorEntry& tensor : tensors) {
    const std::optional<int64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    FATHOM_CHECK(bytes.has_value(), tensor.name);
    writer.key(tensor.name).begin_object().key("dtype").string(dtype_name(tensor.dtype));
    writer.key("shape").begin_array();
    for (const int64_t dim : tensor.shape)
      writer.integer(dim);
    writer.end_array().key("data_offsets").begin_array().integer(offset);
    offset += *bytes;
    writer.integer(offset).end_array().end_object();
  }
  std::string json = writer.end_object().take();
  json.resize(static_cast<size_t>(align_up<int64_t>(static_cast<int64_t>(json.size()), 8)), ' ');
  std::string out;
  for (int i = 0; i < 8; ++i)
    out.push_back(static_cast<char>(json.size() >> (8 * i)));
  return out + json;
}

}  // namespace fathom
