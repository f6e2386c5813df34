#include "fathom/weights/checkpoint/safetensors.h"

#include <fstream>
#include <gtest/gtest.h>
#include <random>
#include <string>

#include "fathom/base/str_cat.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

std::string length_of(uint64_t length) {
  std::string text;
  for (int i = 0; i < 8; ++i)
    text.push_back(static_cast<char>(length >> (8 * i)));
  return text;
}

// A file with that header and `data_bytes` bytes of data.
std::string make_file(std::string_view header, size_t data_bytes) {
  return str_cat(length_of(header.size()), header, std::string(data_bytes, 'x'));
}

// What a reader of the file does, on bytes in memory.
Result<SafetensorsHeader> parse(std::string_view file) {
  const auto size = static_cast<int64_t>(file.size());
  FATHOM_ASSIGN(const int64_t length, parse_header_length(file.substr(0, 8), size, "F"));
  return parse_safetensors_header(file.substr(8, static_cast<size_t>(length)), size, "F");
}

std::string error_of(std::string_view header, size_t data_bytes) {
  const auto result = parse(make_file(header, data_bytes));
  return result.ok() ? "accepted" : result.status().message();
}

StatusCode code_of(std::string_view header, size_t data_bytes) {
  const auto result = parse(make_file(header, data_bytes));
  return result.ok() ? StatusCode::kOk : result.status().code();
}

constexpr std::string_view kValid =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
    R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})";

TEST(SafetensorsHeader, ReadsTensorsInTheOrderOfTheirData) {
  const auto header = parse(make_file(kValid, 16));

  ASSERT_TRUE(header.ok()) << header.status().message();
  const auto base = static_cast<int64_t>(8 + kValid.size());
  EXPECT_EQ(header->data_begin, base);
  EXPECT_EQ(header->file_size, base + 16);
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0], (TensorEntry{"a", Format::kF32, {}, base, base + 4}));
  EXPECT_EQ(header->tensors[1], (TensorEntry{"b", Format::kBf16, {2, 3}, base + 4, base + 16}));
  ASSERT_EQ(header->metadata.size(), 1u);
  EXPECT_EQ(header->metadata[0].first, "format");
  EXPECT_EQ(header->metadata[0].second, "pt");
}

TEST(SafetensorsHeader, TakesEveryDtype) {
  const std::pair<const char*, int> dtypes[] = {
      {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
      {"I8", 1},  {"U8", 1},  {"I32", 4},  {"I64", 8},     {"BOOL", 1},    {"F64", 8}};
  for (const auto& [name, size] : dtypes) {
    const auto header = parse(make_file(
        str_cat(R"({"t":{"dtype":")", name, R"(","shape":[3],"data_offsets":[0,)", 3 * size, "]}}"),
        static_cast<size_t>(3 * size)));
    ASSERT_TRUE(header.ok()) << header.status().message();
    EXPECT_EQ(dtype_name(header->tensors[0].dtype), name);
    EXPECT_EQ(header->tensors[0].bytes(), 3 * size);
  }
}

TEST(SafetensorsHeader, EmptyTensorsAndNoTensorsAreFine) {
  EXPECT_EQ(error_of("{}", 0), "accepted");
  EXPECT_EQ(error_of("{}      ", 0), "accepted");
  EXPECT_EQ(error_of(R"({"__metadata__":{}})", 0), "accepted");
  EXPECT_EQ(error_of(R"({"e":{"dtype":"F32","shape":[0,5],"data_offsets":[2,2]},)"
                     R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                     R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                     3),
            "accepted");
}

TEST(SafetensorsHeader, LengthIsCheckedBeforeItSizesAnything) {
  const auto error = [](uint64_t length, size_t rest) {
    const auto result = parse(str_cat(length_of(length), std::string(rest, ' ')));
    return result.ok() ? "accepted" : result.status().message();
  };
  EXPECT_EQ(error(0, 0), "F: header begins with nothing at byte 8, expected '{'");
  EXPECT_EQ(error(0, 100), "F: header begins with nothing at byte 8, expected '{'");
  EXPECT_EQ(error(1, 0), "F: header length at byte 0 is 1, but only 0 bytes follow it");
  EXPECT_EQ(error(8, 7), "F: header length at byte 0 is 8, but only 7 bytes follow it");
  EXPECT_EQ(error(100, 92), "F: header length at byte 0 is 100, but only 92 bytes follow it");
  EXPECT_EQ(error(100'000'001, 10),
            "F: header length at byte 0 is 100000001, expected at most 100000000");
  EXPECT_EQ(error(uint64_t{1} << 63, 10),
            "F: header length at byte 0 is 9223372036854775808, expected at most 100000000");
  EXPECT_EQ(error(UINT64_MAX, 10),
            "F: header length at byte 0 is 18446744073709551615, expected at most 100000000");
}

TEST(SafetensorsHeader, FileShorterThanTheLengthIsNamed) {
  for (size_t size = 0; size < 8; ++size) {
    const auto result = parse(std::string(size, '\1'));
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().message(), str_cat("F: is ", size,
                                                 " bytes long, expected at least 8 "
                                                 "for the header length"));
  }
}

TEST(SafetensorsHeader, FrameIsBracesAndSpaces) {
  EXPECT_EQ(error_of(" {}", 0), "F: header begins with byte 0x20 at byte 8, expected '{'");
  EXPECT_EQ(error_of("[]", 0), "F: header begins with '[' at byte 8, expected '{'");
  EXPECT_EQ(error_of("{}\n", 0),
            "F: header ends with byte 0x0a at byte 10, expected '}' and spaces");
  EXPECT_EQ(error_of(std::string_view("{}\0", 3), 0),
            "F: header ends with byte 0x00 at byte 10, expected '}' and spaces");
  EXPECT_EQ(code_of("{}{}", 0), StatusCode::kCorrupt);
}

TEST(SafetensorsHeader, MalformedJsonIsCorrupt) {
  for (const char* header : {"{", "{]}", "{'a':1}", R"({"a":})", R"({"a":1,})", "{nan}",
                             R"({"\ud800":1})", "{\"\xff\":1}", R"({"a":1e999})", R"({"a":NaN})"}) {
    EXPECT_EQ(code_of(header, 0), StatusCode::kCorrupt) << header;
  }
}

TEST(SafetensorsHeader, DeepNestingIsRefused) {
  std::string header = "{\"a\":";
  header += std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_EQ(code_of(header, 0), StatusCode::kCorrupt);
}

TEST(SafetensorsHeader, DuplicateKeysAreRefusedAtEveryLevel) {
  const char* tensor = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_EQ(code_of(str_cat("{", tensor, ",", tensor, "}"), 1), StatusCode::kCorrupt);
  EXPECT_EQ(code_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
            StatusCode::kCorrupt);
  EXPECT_EQ(code_of(R"({"__metadata__":{"x":"1","x":"1"}})", 0), StatusCode::kCorrupt);
  // The same key, once escaped.
  EXPECT_EQ(code_of(str_cat("{", tensor, R"(,"\u0061":{"dtype":"U8","shape":[0],)",
                            R"("data_offsets":[0,0]}})"),
                    1),
            StatusCode::kCorrupt);
}

TEST(SafetensorsHeader, MembersAreNamedWhenTheyAreMissing) {
  EXPECT_EQ(error_of(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1),
            "F: tensor \"a\": has no dtype");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1),
            "F: tensor \"a\": has no shape");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"U8","shape":[1]}})", 1),
            "F: tensor \"a\": has no data_offsets");
  EXPECT_EQ(error_of(R"({"a":[]})", 1),
            "F: tensor \"a\": its value is an array, expected an object");
}

// The format's own reader (serde's derived one, which names no unknown field an error) does so too.
TEST(SafetensorsHeader, OtherMembersAreIgnored) {
  const auto header = parse(make_file(
      R"({"a":{"x":{"y":[1]},"dtype":"U8","shape":[1],"data_offsets":[0,1],"note":"z"}})", 1));

  ASSERT_TRUE(header.ok()) << header.status().message();
  ASSERT_EQ(header->tensors.size(), 1u);
  EXPECT_EQ(header->tensors[0].dtype, Format::kU8);
  EXPECT_EQ(header->tensors[0].shape, std::vector<int64_t>{1});
  EXPECT_EQ(header->tensors[0].bytes(), 1);
}

TEST(SafetensorsHeader, DtypeMustBeKnown) {
  EXPECT_EQ(error_of(R"({"a":{"dtype":"Q8","shape":[1],"data_offsets":[0,1]}})", 1),
            "F: tensor \"a\": dtype \"Q8\" is unknown, expected one of F32, F16, BF16, F8_E4M3, "
            "F8_E5M2, F8_E8M0, I8, U8, I32, I64, BOOL, F64");
  EXPECT_EQ(code_of(R"({"a":{"dtype":"Q8","shape":[1],"data_offsets":[0,1]}})", 1),
            StatusCode::kCorrupt);
  EXPECT_EQ(error_of(R"({"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})", 4).substr(0, 34),
            "F: tensor \"a\": dtype \"f32\" is unkn");
  EXPECT_EQ(error_of(R"({"a":{"dtype":3,"shape":[1],"data_offsets":[0,1]}})", 1),
            "F: tensor \"a\": dtype is an integer, expected a string");
}

TEST(SafetensorsHeader, DtypeOfTheContainerThatFathomLacksIsUnsupportedByName) {
  EXPECT_EQ(error_of(R"({"a":{"dtype":"U64","shape":[1],"data_offsets":[0,8]}})", 8),
            "F: tensor \"a\": dtype \"U64\" is not supported, expected one of F32, F16, BF16, "
            "F8_E4M3, F8_E5M2, F8_E8M0, I8, U8, I32, I64, BOOL, F64");
  for (const char* dtype : {"I16", "U16", "U32", "U64", "F4"}) {
    EXPECT_EQ(
        code_of(str_cat(R"({"a":{"dtype":")", dtype, R"(","shape":[0],"data_offsets":[0,0]}})"), 0),
        StatusCode::kUnsupported)
        << dtype;
  }
}

TEST(SafetensorsHeader, DimensionsAreIntegersInRange) {
  const auto error = [](std::string_view dim) {
    return error_of(str_cat(R"({"a":{"dtype":"U8","shape":[)", dim, R"(],"data_offsets":[0,1]}})"),
                    1);
  };
  EXPECT_EQ(error("-1"),
            "F: tensor \"a\": a dimension of shape is -1, expected 0 to 1099511627776");
  EXPECT_EQ(error("1099511627777"),
            "F: tensor \"a\": a dimension of shape is 1099511627777, expected 0 to 1099511627776");
  EXPECT_EQ(error("1.0"),
            "F: tensor \"a\": a dimension of shape is a number with a fraction or an exponent, "
            "expected an integer");
  EXPECT_EQ(error("1e0"),
            "F: tensor \"a\": a dimension of shape is a number with a fraction or an exponent, "
            "expected an integer");
  EXPECT_EQ(error("true"),
            "F: tensor \"a\": a dimension of shape is a boolean, expected an integer");
  EXPECT_EQ(error("\"1\""),
            "F: tensor \"a\": a dimension of shape is a string, expected an integer");
  EXPECT_NE(error("9223372036854775808"), "accepted");
  EXPECT_NE(error("18446744073709551617"), "accepted");
  EXPECT_EQ(error("1,1,1,1,1,1,1,1,1"),
            "F: tensor \"a\": shape has 9 dimensions, expected at most 8");
  EXPECT_EQ(error("1,1,1,1,1,1,1,1"), "accepted");
}

TEST(SafetensorsHeader, ShapeProductMayNotWrap) {
  // 2^32 * 2^32 * 1 wraps to 0, and 2^40 * 2^24 does; both with offsets that fit the wrapped value.
  EXPECT_EQ(
      error_of(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
      "F: tensor \"a\": U8 [4294967296, 4294967296] is larger than the limit of "
      "1099511627776 bytes");
  EXPECT_EQ(
      code_of(R"({"a":{"dtype":"U8","shape":[1099511627776,16777216],"data_offsets":[0,0]}})", 0),
      StatusCode::kCorrupt);
  EXPECT_EQ(code_of(R"({"a":{"dtype":"I64","shape":[1099511627776],"data_offsets":[0,0]}})", 0),
            StatusCode::kCorrupt);
  EXPECT_EQ(code_of(R"({"a":{"dtype":"U8","shape":[1099511627776,2,0],"data_offsets":[0,0]}})", 0),
            StatusCode::kCorrupt);
}

TEST(SafetensorsHeader, OffsetsSpanExactlyTheTensor) {
  const auto error = [](std::string_view offsets) {
    return error_of(str_cat(R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":)", offsets, "}}"),
                    16);
  };
  EXPECT_EQ(error("[0,16]"), "accepted");
  EXPECT_EQ(error("[0,12]"),
            "F: tensor \"a\": data_offsets [0, 12] span 12 bytes, expected 16 for F32 [2, 2]");
  EXPECT_EQ(error("[16,0]"), "F: tensor \"a\": data_offsets [16, 0], expected 0 <= begin <= end");
  EXPECT_EQ(error("[-16,0]"), "F: tensor \"a\": data_offsets [-16, 0], expected 0 <= begin <= end");
  EXPECT_EQ(
      error("[0,17]"),
      "F: tensor \"a\": data_offsets [0, 17] end beyond the file, which has 16 bytes of data");
  EXPECT_EQ(error("[9223372036854775791,9223372036854775807]"),
            "F: tensor \"a\": data_offsets [9223372036854775791, 9223372036854775807] end beyond "
            "the file, which has 16 bytes of data");
  EXPECT_EQ(error("[0]"), "F: tensor \"a\": data_offsets has 1 numbers, expected 2");
  EXPECT_EQ(error("[0,16,16]"), "F: tensor \"a\": data_offsets has 3 numbers, expected 2");
  EXPECT_EQ(
      error("[0,16.0]"),
      "F: tensor \"a\": an offset is a number with a fraction or an exponent, expected an integer");
  EXPECT_EQ(error("16"), "F: tensor \"a\": data_offsets is an integer, expected an array");
}

std::string two_tensors(std::string_view a, std::string_view b) {
  return str_cat(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)", a,
                 R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)", b, "}}");
}

TEST(SafetensorsHeader, TensorsTileTheDataWithoutHoleOrOverlap) {
  const std::string base_text = two_tensors("[0,4]", "[4,8]");
  const auto base = static_cast<int64_t>(8 + base_text.size());

  EXPECT_EQ(error_of(base_text, 8), "accepted");
  EXPECT_EQ(error_of(two_tensors("[4,8]", "[0,4]"), 8), "accepted");
  EXPECT_EQ(error_of(two_tensors("[0,4]", "[5,9]"), 9),
            str_cat("F: tensor \"b\": begins at byte ", base + 5, ", expected ", base + 4,
                    ", where tensor \"a\" ends (a hole)"));
  EXPECT_EQ(error_of(two_tensors("[0,4]", "[3,7]"), 7),
            str_cat("F: tensor \"b\": begins at byte ", base + 3, ", expected ", base + 4,
                    ", where tensor \"a\" ends (an overlap)"));
  EXPECT_EQ(error_of(two_tensors("[0,4]", "[0,4]"), 4),
            str_cat("F: tensor \"b\": begins at byte ", base, ", expected ", base + 4,
                    ", where tensor \"a\" ends (an overlap)"));
  EXPECT_EQ(error_of(two_tensors("[1,5]", "[5,9]"), 9),
            str_cat("F: tensor \"a\": begins at byte ", base + 1, ", expected ", base,
                    ", where the data begins (a hole)"));
  EXPECT_EQ(error_of(base_text, 9), str_cat("F: the last tensor ends at byte ", base + 8,
                                            ", expected the end of the file at ", base + 9));
}

TEST(SafetensorsHeader, EmptyTensorInsideAnotherIsAnOverlap) {
  EXPECT_EQ(code_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                    R"("e":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
                    4),
            StatusCode::kCorrupt);
}

TEST(SafetensorsHeader, NamesAreBounded) {
  const auto error = [](const std::string& name) {
    return error_of(str_cat("{\"", name, R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})"),
                    1);
  };
  EXPECT_EQ(error(std::string(1024, 'n')), "accepted");
  EXPECT_EQ(error(std::string(1025, 'n')),
            str_cat("F: tensor \"", std::string(200, 'n'),
                    "\"...: name of 1025 bytes, expected 1 to 1024"));
  EXPECT_EQ(error(""), "F: tensor \"\": name of 0 bytes, expected 1 to 1024");
}

TEST(SafetensorsHeader, HostileNamesAreEscapedInMessages) {
  EXPECT_EQ(error_of("{\"\\u001b[31m\\n\xc3\xa4\":3}", 0),
            "F: tensor \"\\u001b[31m\\n\\u00e4\": its value is an integer, expected an object");
}

TEST(SafetensorsHeader, MetadataIsAMapOfStrings) {
  EXPECT_EQ(error_of(R"({"__metadata__":[]})", 0),
            "F: __metadata__ is an array, expected an object");
  EXPECT_EQ(error_of(R"({"__metadata__":{"a":1}})", 0),
            "F: __metadata__ value of \"a\" is an integer, expected a string");
  EXPECT_EQ(error_of(str_cat(R"({"__metadata__":{"a":")", std::string(1 << 20, 'v'), "\"}}"), 0),
            "accepted");
  EXPECT_EQ(
      code_of(str_cat(R"({"__metadata__":{"a":")", std::string((1 << 20) + 1, 'v'), "\"}}"), 0),
      StatusCode::kCorrupt);
}

TEST(SafetensorsHeader, EveryTruncationIsAnError) {
  const std::string file = make_file(kValid, 16);
  ASSERT_TRUE(parse(file).ok());
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(parse(std::string_view(file).substr(0, size)).ok()) << "cut at " << size;
  }
}

TEST(SafetensorsHeader, EveryAppendedByteIsAnError) {
  EXPECT_FALSE(parse(make_file(kValid, 16) + "x").ok());
  EXPECT_FALSE(parse(make_file(kValid, 16) + std::string(8, ' ')).ok());
}

TEST(SafetensorsHeader, FlippedBitsOfTheHeaderGiveAnErrorOrSaneTensors) {
  const std::string file = make_file(kValid, 16);
  for (size_t bit = 0; bit < 8 * (8 + kValid.size()); ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const auto header = parse(flipped);
    if (!header.ok()) continue;
    int64_t expected = header->data_begin;
    for (const TensorEntry& tensor : header->tensors) {
      EXPECT_EQ(tensor.begin, expected) << "bit " << bit;
      EXPECT_EQ(tensor.bytes(), *tensor_bytes(tensor.dtype, tensor.shape)) << "bit " << bit;
      expected = tensor.end;
    }
    EXPECT_EQ(expected, static_cast<int64_t>(file.size())) << "bit " << bit;
  }
}

TEST(SafetensorsHeader, RandomTensorsSurviveWritingAndReading) {
  constexpr uint64_t kSeed = 20240611;
  std::mt19937_64 random(kSeed);
  const Format formats[] = {Format::kF32, Format::kBf16, Format::kE4m3, Format::kUe8m0,
                            Format::kU8,  Format::kI64,  Format::kBool};
  for (int round = 0; round < 300; ++round) {
    std::vector<TensorEntry> tensors(random() % 12);
    int64_t bytes = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].name = str_cat("t\"\\\n\xc3\xa4", i);
      tensors[i].dtype = formats[random() % std::size(formats)];
      tensors[i].shape.resize(random() % 9);
      for (int64_t& dim : tensors[i].shape)
        dim = static_cast<int64_t>(random() % 3);
      bytes += *tensor_bytes(tensors[i].dtype, tensors[i].shape);
    }
    const std::vector<std::pair<std::string, std::string>> metadata = {{"format", "pt"}, {"k", ""}};

    const std::string text = format_safetensors_header(tensors, metadata);
    const auto header = parse(text + std::string(static_cast<size_t>(bytes), 'x'));

    ASSERT_TRUE(header.ok()) << header.status().message() << ", seed " << kSeed << " round "
                             << round;
    EXPECT_EQ(text.size() % 8, 0u);
    EXPECT_EQ(header->metadata, metadata);
    ASSERT_EQ(header->tensors.size(), tensors.size());
    for (const TensorEntry& written : tensors) {
      const bool is_there =
          std::any_of(header->tensors.begin(), header->tensors.end(), [&](const TensorEntry& read) {
            return read.name == written.name && read.dtype == written.dtype &&
                   read.shape == written.shape;
          });
      EXPECT_TRUE(is_there) << quoted(written.name) << ", seed " << kSeed << " round " << round;
    }
  }
}

TEST(OpenSafetensors, ReadsFilesAndNamesThemInErrors) {
  const TempDir dir;
  const auto put = [&](const char* name, const std::string& text) {
    std::ofstream(dir.file(name), std::ios::binary) << text;
  };
  put("good", make_file(kValid, 16));
  put("cut", make_file(kValid, 15));
  put("empty", "");

  const auto good = open_safetensors(dir.file("good"));
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->header.tensors.size(), 2u);
  EXPECT_EQ(good->file.size(), good->header.file_size);
  EXPECT_EQ(open_safetensors(dir.file("cut")).status().message(),
            str_cat(dir.file("cut"),
                    ": tensor \"b\": data_offsets [4, 16] end beyond the file, "
                    "which has 15 bytes of data"));
  EXPECT_EQ(open_safetensors(dir.file("empty")).status().message(),
            str_cat(dir.file("empty"),
                    ": is 0 bytes long, expected at least 8 for the header "
                    "length"));
  EXPECT_EQ(open_safetensors(dir.file("none")).status().code(), StatusCode::kNotFound);
}

TEST(TensorBytes, IsNothingBeyondTheLimits) {
  EXPECT_EQ(tensor_bytes(Format::kF32, {}), 4);
  EXPECT_EQ(tensor_bytes(Format::kBf16, {7168, 2048}), 7168 * 2048 * 2);
  EXPECT_EQ(tensor_bytes(Format::kU8, {int64_t{1} << 40}), int64_t{1} << 40);
  EXPECT_EQ(tensor_bytes(Format::kU8, {0, int64_t{1} << 40}), 0);
  EXPECT_EQ(tensor_bytes(Format::kU8, {(int64_t{1} << 40) + 1}), std::nullopt);
  EXPECT_EQ(tensor_bytes(Format::kBf16, {int64_t{1} << 40}), std::nullopt);
  EXPECT_EQ(tensor_bytes(Format::kU8, {-1}), std::nullopt);
  EXPECT_EQ(tensor_bytes(Format::kU8, {1, 1, 1, 1, 1, 1, 1, 1, 1}), std::nullopt);
}

}  // namespace
}  // namespace fathom
