// The safetensors container: an 8-byte little-endian header length, a JSON header, tensor data.
//
//   byte 0 ...... 7 | 8 ............ 8 + L - 1 | 8 + L ..................... file size
//   [ L, u64 ]        [ header, JSON, padded    ] [ data; the tensors tile it ]
//                     [ with spaces             ]   data_offsets count from 8 + L
//
// The parser trusts nothing: every length is compared with the file before it sizes anything, every
// offset is checked against dtype, shape and its neighbours, and what it accepts has exactly one
// meaning. Format: github.com/huggingface/safetensors, README.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/formats/format.h"
#include "fathom/os/file.h"

namespace fathom {

inline constexpr int64_t kMaxHeaderBytes = 100'000'000;
inline constexpr int64_t kMaxTensorsPerFile = 500'000;
inline constexpr int64_t kMaxTensorDims = 8;
inline constexpr int64_t kMaxDimSize = int64_t{1} << 40;
inline constexpr int64_t kMaxTensorBytes = int64_t{1} << 40;
inline constexpr int64_t kMaxTensorNameBytes = 1024;
inline constexpr int64_t kMaxMetadataValueBytes = 1 << 20;
inline constexpr int64_t kHeaderLengthBytes = 8;

/// One tensor of a file.
struct TensorEntry {
  std::string name;
  Format dtype = Format::kNone;  ///< a dense format
  std::vector<int64_t> shape;    ///< empty for a scalar
  int64_t begin = 0;             ///< absolute file offset of the first byte
  int64_t end = 0;               ///< absolute file offset past the last byte

  int64_t bytes() const { return end - begin; }

  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in the order of their data; empty ones by name
  std::vector<std::pair<std::string, std::string>> metadata;  ///< "__metadata__", in file order
  int64_t data_begin = 0;                                     ///< absolute file offset
  int64_t file_size = 0;
};

struct SafetensorsFile {
  File file;
  SafetensorsHeader header;
};

/// The dtype's name in the header: "BF16", "F8_E4M3". `format` is dense.
std::string_view dtype_name(Format format);

/// "BF16 [7168, 2048]", for messages.
std::string describe_tensor(Format dtype, const std::vector<int64_t>& shape);

/// The name in double quotes, escaped and cut to a readable length: names come from outside.
std::string quoted(std::string_view name);

/// Bytes of a dense tensor, or nothing if a dimension is negative or a limit above is exceeded.
std::optional<int64_t> tensor_bytes(Format dtype, const std::vector<int64_t>& shape);

/// The length of the header, from the file's first kHeaderLengthBytes (fewer if the file is
/// shorter). `what` names the file in messages. Errors: Corrupt.
Result<int64_t> parse_header_length(std::string_view first_bytes,
                                    int64_t file_size,
                                    std::string_view what);

/// Parses the JSON header, without the length in front of it. Checked: UTF-8 JSON that starts with
/// '{' and is followed by nothing but spaces; no duplicate keys; integers as integers; names, dims
/// and sizes within the limits; known dtype; data_offsets that span exactly dtype times shape; all
/// tensors together tile the data section up to the end of the file.
/// Errors: Corrupt, naming file, tensor, offset, found and expected; Unsupported for a dtype that
/// the container knows and fathom does not.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view header,
                                                   int64_t file_size,
                                                   std::string_view what);

/// Opens a file and parses its header. Errors: as above and as File::open; Corrupt for a file of
/// another kind (file_kind.h), with what it is.
Result<SafetensorsFile> open_safetensors(const std::string& path,
                                         Symlinks symlinks = Symlinks::kFollow);

/// Length and header as bytes: the inverse of the parser. The header is padded with spaces so that
/// the data begins at a multiple of 8. `tensors` are in the order of their data, without holes;
/// begin and end are recomputed from dtype and shape, and need not be set.
std::string format_safetensors_header(
    const std::vector<TensorEntry>& tensors,
    const std::vector<std::pair<std::string, std::string>>& metadata);

}  // namespace fathom
