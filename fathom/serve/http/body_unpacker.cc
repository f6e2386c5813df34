#include "fathom/serve/http/body_unpacker.h"

#include <algorithm>
#include <array>
#include <zlib.h>
#include <zstd.h>

#include "fathom/base/str_cat.h"

namespace fathom::serve {
namespace {

constexpr size_t kStepBytes = 16 << 10;
constexpr size_t kZstdHeaderBytes = 5;
// One text: whether the library finds a fault or waits for more depends on how a body was cut.
constexpr const char* kNoZstd = "the body is no whole zstd with a window of at most 8 MiB";
constexpr int kZstdWindowLog = 23;  // 8 MiB, what RFC 8878 asks decoders to have

// Appends what a step gave. OutOfMemory beyond the limit.
Status append_step(const char* data, size_t size, std::string& body, int64_t max_bytes) {
  const int64_t room = max_bytes - static_cast<int64_t>(body.size());
  body.append(data, std::min(size, static_cast<size_t>(std::max<int64_t>(room, 0))));
  if (static_cast<int64_t>(size) <= room) return {};
  return out_of_memory(
      str_cat("the unpacked body is longer than ", max_bytes, " bytes (--max-body-mb)"));
}

class Gunzip final : public BodyUnpacker {
 public:
  ~Gunzip() override {
    if (started_) inflateEnd(&stream_);
  }

  Status start() {
    // 16 + 15: the format of gzip, the largest window.
    if (inflateInit2(&stream_, 16 + 15) != Z_OK) return out_of_memory("gzip cannot start");
    started_ = true;
    return {};
  }

  Status unpack(std::string_view packed, std::string& body, int64_t max_bytes) override {
    std::array<char, kStepBytes> step;
    // zlib does not write to its input, though its interface does not say so.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream_.avail_in = static_cast<uInt>(packed.size());
    bool full_step = false;
    while (stream_.avail_in > 0 || full_step) {
      if (at_end_) {
        // Members may follow each other.
        if (inflateReset(&stream_) != Z_OK) return corrupt("the gzip body cannot go on");
        at_end_ = false;
      }
      stream_.next_out = reinterpret_cast<Bytef*>(step.data());
      stream_.avail_out = kStepBytes;
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_MEM_ERROR) return out_of_memory("gzip has no memory");
      // What came before a fault counts first, as it does when the body comes in small pieces.
      FATHOM_TRY(append_step(step.data(), kStepBytes - stream_.avail_out, body, max_bytes));
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
        return corrupt("the body is no gzip, though Content-Encoding says so");
      at_end_ = result == Z_STREAM_END;
      full_step = stream_.avail_out == 0 && !at_end_;
    }
    return {};
  }

  Status finish() const override {
    return at_end_ ? Status() : corrupt("the gzip body ends too early");
  }

  int64_t held_bytes() const override { return 48 << 10; }

 private:
  z_stream stream_{};
  bool started_ = false;
  bool at_end_ = false;
};

// Whether the first bytes of a frame are those of RFC 8878: of a frame, or of one to be skipped.
// The library may know formats of before, which it reads otherwise and in memory that it does not
// count.
class FrameMagic {
 public:
  /// Looks at bytes that a frame goes on with. False if they begin none.
  bool begins(std::string_view bytes) const {
    constexpr std::string_view kFrame = "\x28\xB5\x2F\xFD";
    constexpr std::string_view kSkipped = "\x50\x2A\x4D\x18";
    bool skipped = skipped_;
    for (size_t i = seen_; i < kFrame.size() && i - seen_ < bytes.size(); ++i) {
      const char byte = bytes[i - seen_];
      if (i == 0) {
        skipped = is_skipped(byte);
        if (!skipped && byte != kFrame[0]) return false;
      } else if (byte != (skipped ? kSkipped : kFrame)[i]) {
        return false;
      }
    }
    return true;
  }

  /// They were taken.
  void take(std::string_view bytes) {
    if (seen_ == 0 && !bytes.empty()) skipped_ = is_skipped(bytes.front());
    seen_ += bytes.size();
  }

  /// The next byte begins a frame.
  void restart() { seen_ = 0; }

 private:
  static bool is_skipped(char byte) { return (static_cast<unsigned char>(byte) & 0xF0) == 0x50; }

  size_t seen_ = 0;  // bytes of the frame
  bool skipped_ = false;
};

class Unzstd final : public BodyUnpacker {
 public:
  ~Unzstd() override { ZSTD_freeDCtx(context_); }

  Status start() {
    context_ = ZSTD_createDCtx();
    if (context_ == nullptr) return out_of_memory("zstd cannot start");
    ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, kZstdWindowLog);
    return {};
  }

  Status unpack(std::string_view packed, std::string& body, int64_t max_bytes) override {
    std::array<char, kStepBytes> step;
    ZSTD_inBuffer in{packed.data(), 0, 0};
    bool full_step = false;
    while (in.pos < packed.size() || full_step) {
      // No more than a block at a time, so that what is before a fault is unpacked in every case.
      if (!full_step) in.size = in.pos + std::min(wanted_, packed.size() - in.pos);
      const std::string_view given = packed.substr(in.pos, in.size - in.pos);
      if (!magic_.begins(given)) return corrupt("the body is no zstd of RFC 8878");
      ZSTD_outBuffer out{step.data(), step.size(), 0};
      const size_t begin = in.pos;
      const size_t result = ZSTD_decompressStream(context_, &out, &in);
      if (ZSTD_isError(result) != 0) {
        return corrupt(kNoZstd);
      }
      FATHOM_TRY(append_step(step.data(), out.pos, body, max_bytes));
      magic_.take(packed.substr(begin, in.pos - begin));
      at_end_ = result == 0;
      if (at_end_) magic_.restart();
      wanted_ = at_end_ ? kZstdHeaderBytes : without_next_header(result);
      full_step = out.pos == out.size && !at_end_;
    }
    return {};
  }

  Status finish() const override { return at_end_ ? Status() : corrupt(kNoZstd); }

  int64_t held_bytes() const override { return static_cast<int64_t>(ZSTD_sizeof_DCtx(context_)); }

 private:
  // What the library wants next is a block and the header behind it. A fault there would take what
  // the block gave with it.
  static size_t without_next_header(size_t wanted) {
    constexpr size_t kBlockHeader = 3;
    return wanted > kBlockHeader ? wanted - kBlockHeader : wanted;
  }

  ZSTD_DCtx* context_ = nullptr;
  FrameMagic magic_;
  size_t wanted_ = kZstdHeaderBytes;
  bool at_end_ = false;
};

template <class Unpacker>
Result<std::unique_ptr<BodyUnpacker>> started() {
  auto unpacker = std::make_unique<Unpacker>();
  FATHOM_TRY(unpacker->start());
  return std::unique_ptr<BodyUnpacker>(std::move(unpacker));
}

}  // namespace

Result<std::unique_ptr<BodyUnpacker>> BodyUnpacker::make(BodyCoding coding) {
  switch (coding) {
    case BodyCoding::kNone:
      break;
    case BodyCoding::kGzip:
      return started<Gunzip>();
    case BodyCoding::kZstd:
      return started<Unzstd>();
  }
  return std::unique_ptr<BodyUnpacker>();
}

}  // namespace fathom::serve
