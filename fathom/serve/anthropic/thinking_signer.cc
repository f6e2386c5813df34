#include "fathom/serve/anthropic/thinking_signer.h"

#include <array>

#include "fathom/os/hmac.h"
#include "fathom/os/random.h"

namespace fathom::serve {

ThinkingSigner::ThinkingSigner() {
  std::array<uint8_t, 32> bytes{};
  fill_unguessable(bytes);
  key_.assign(bytes.begin(), bytes.end());
}

std::string ThinkingSigner::sign(std::string_view thinking) const {
  return to_hex(hmac_sha256(key_, thinking));
}

bool ThinkingSigner::holds(std::string_view thinking, std::string_view signature) const {
  return equal_in_constant_time(sign(thinking), signature);
}

}  // namespace fathom::serve
