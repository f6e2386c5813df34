#include "fathom/serve/responses/sealed_reasoning.h"

#include "fathom/text/base64.h"
#include "fathom/text/utf8.h"

namespace fathom::serve {
namespace {

constexpr std::string_view kMark = "fathom1:";

}  // namespace

std::string seal_reasoning(std::string_view text) {
  return std::string(kMark) + to_base64(text);
}

std::optional<std::string> open_reasoning(std::string_view sealed) {
  if (!sealed.starts_with(kMark)) return {};
  std::optional<std::string> text = from_base64(sealed.substr(kMark.size()));
  if (!text || !is_valid_utf8(*text)) return {};
  return text;
}

}  // namespace fathom::serve
