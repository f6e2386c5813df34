#include "fathom/text/file_kind.h"

#include <algorithm>
#include <string>

#include "fathom/base/ascii.h"
#include "fathom/base/str_cat.h"

namespace fathom {
namespace {

using std::string_view_literals::operator""sv;

struct Kind {
  std::string_view begin;
  std::string_view what;
};

constexpr std::string_view kPytorch =
    "is a file of PyTorch (.pt, .bin), which can run code and is never opened\nhint: get the "
    "model's "
    "safetensors files, or convert it";

constexpr std::string_view kPacked = "is compressed\nhint: unpack it";

constexpr Kind kKinds[] = {
    {"version https://git-lfs.github.com/spec/"sv,
     "is a Git LFS pointer in place of the file\nhint: `git lfs pull` fetches it where the model "
     "was "
     "cloned, `hf download` the whole model"},
    {"GGUF"sv, "is a GGUF file, of llama.cpp\nhint: get the model's safetensors files"},
    {"PK\x03\x04"sv, kPytorch},    // a ZIP archive
    {"\x80\x02\x8A"sv, kPytorch},  // pickles: a number of torch.save, a dictionary, a frame
    {"\x80\x02}"sv, kPytorch},
    {"\x80\x03}"sv, kPytorch},
    {"\x80\x04\x95"sv, kPytorch},
    {"\x80\x05\x95"sv, kPytorch},
    {"\x89HDF\r\n"sv, "is an HDF5 file, of Keras\nhint: get the model's safetensors files"},
    {"\x1F\x8B"sv, kPacked},          // gzip
    {"\x28\xB5\x2F\xFD"sv, kPacked},  // zstd
    {"\xFD"
     "7zXZ\0"sv,
     kPacked},
};

// Servers answer so instead of sending a file: for a licence, a login or a wrong address.
bool is_html(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return false;
  const std::string head = ascii_lower(text.substr(begin, 16));
  return head.starts_with("<!doctype html") || head.starts_with("<html") ||
         head.starts_with("<head");
}

}  // namespace

std::string_view foreign_file(std::string_view first_bytes) {
  const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& kind) {
    return first_bytes.starts_with(kind.begin);
  });
  if (found != std::end(kKinds)) return found->what;
  if (!is_html(first_bytes)) return {};
  return "is a page of HTML, which a server sends in place of a file that needs a login or is not "
         "there\nhint: download it again, with the login that its page asks for";
}

Result<Json> parse_json_file(std::string_view text,
                             const JsonLimits& limits,
                             std::string_view path) {
  Result<Json> json = parse_json(text, limits, path);
  if (json.ok()) return json;
  const std::string_view foreign = foreign_file(text.substr(0, 512));
  return foreign.empty() ? std::move(json) : Result<Json>(corrupt(str_cat(path, ": ", foreign)));
}

}  // namespace fathom
