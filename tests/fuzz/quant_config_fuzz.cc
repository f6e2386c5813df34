// The declarations of a quantised checkpoint: config.json, a zero byte, hf_quant_config.json.
// Oracles: what is accepted keeps the promises of the header; two sources that are accepted
// together are accepted alone and agree; globs match as a naive matcher says.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "fathom/text/json.h"
#include "fathom/weights/checkpoint/quant_config.h"

namespace {

using fathom::Json;
using fathom::QuantAlgo;
using fathom::QuantConfig;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// Exponential, so only for short patterns.
bool naive_glob(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern.front() == '*') {
    return naive_glob(pattern.substr(1), text) ||
           (!text.empty() && naive_glob(pattern, text.substr(1)));
  }
  return !text.empty() && text.front() == pattern.front() &&
         naive_glob(pattern.substr(1), text.substr(1));
}

void check_globs(const QuantConfig& quant) {
  constexpr std::string_view kModules[] = {"lm_head", "model.layers.61.mlp.gate", "a.b"};
  for (const std::string& pattern : quant.exclude) {
    for (const std::string_view module : kModules) {
      if (pattern.size() > 12) {
        (void)fathom::matches_glob(pattern, module);
      } else {
        require(fathom::matches_glob(pattern, module) == naive_glob(pattern, module),
                "globs differ");
      }
    }
  }
  for (const std::string_view module : kModules)
    (void)quant.excludes(module);
}

void check_promises(const QuantConfig& quant) {
  int64_t group = 0;
  if (quant.algo == QuantAlgo::kNvfp4) group = 16;
  if (quant.algo == QuantAlgo::kMxfp4 || quant.algo == QuantAlgo::kMxfp8) group = 32;
  if (quant.algo == QuantAlgo::kW4Fp8) group = 128;
  require(group == 0 || quant.group_size == group, "group size");
  require(quant.group_size >= 0 && quant.group_size <= 65'536, "range of the group size");
  require(quant.block_n == quant.block_k && (quant.block_n == 0 || quant.block_n == 128), "blocks");
  require(quant.algo != QuantAlgo::kFp8Block || quant.block_n == 128, "block of fp8_block");
  require(!fathom::quant_algo_name(quant.algo).empty(), "name of the algorithm");
  require(!fathom::kv_quant_name(quant.kv_cache).empty(), "name of the KV quantisation");
  require(!quant.source.empty() || quant.algo == QuantAlgo::kNone, "source");
  check_globs(quant);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const fathom::JsonLimits limits{.max_bytes = 4ll << 20,
                                  .big_integer = fathom::JsonLimits::BigInteger::kRound};
  const auto config = fathom::parse_json(input.substr(0, zero), limits, "config.json");
  const std::string_view rest = zero == input.npos ? "" : input.substr(zero + 1);
  const auto sidecar = fathom::parse_json(rest, limits, "hf_quant_config.json");
  const Json* first = config.ok() ? &*config : nullptr;
  const Json* second = sidecar.ok() ? &*sidecar : nullptr;

  const auto alone = fathom::parse_quant_config(first, nullptr);
  const auto other = fathom::parse_quant_config(nullptr, second);
  const auto both = fathom::parse_quant_config(first, second);
  for (const auto* result : {&alone, &other, &both}) {
    if (result->ok()) {
      check_promises(**result);
    } else {
      require(!result->status().message().empty(), "empty message");
    }
  }
  if (both.ok() && first != nullptr && second != nullptr) {
    require(alone.ok() && other.ok(), "accepted together and not alone");
    require(alone->source.empty() || (alone->algo == other->algo && alone->algo == both->algo &&
                                      alone->kv_cache == other->kv_cache),
            "sources that disagree");
  }
  return 0;
}
