// What a checkpoint says about its quantisation: quantization_config in config.json, and ModelOpt's
// hf_quant_config.json beside it. It is what the authors declared; the format of one tensor is
// decided by its own dtype and scales (linear_format.h), because published lists are incomplete.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/formats/format.h"
#include "fathom/text/json.h"

namespace fathom {

/// How the weights were quantised, where one word fits all of them.
enum class QuantAlgo : uint8_t {
  kNone,
  kFp8Block,    ///< E4M3 with a scale per block, 128 x 128
  kFp8Channel,  ///< E4M3 with a scale per output channel
  kFp8Tensor,   ///< E4M3 with one scale
  kNvfp4,
  kMxfp4,
  kMxfp8,
  kInt8Channel,  ///< int8 with a scale per output channel
  kInt8Block,    ///< int8 with a scale per block; known, and not supported by any format
  kW4Fp8,        ///< W4AFP8: int4 experts, FP8 blocks elsewhere
  kMixed,        ///< several; only the tensors tell
};

/// "none", "fp8_block", "nvfp4", ...
std::string_view quant_algo_name(QuantAlgo algo);

/// How the checkpoint wants its KV cache stored. A wish: the user's flag decides.
enum class KvQuant : uint8_t { kNone, kFp8, kInt8, kNvfp4 };

/// "none", "fp8", "int8", "nvfp4".
std::string_view kv_quant_name(KvQuant kv);

struct QuantConfig {
  std::string source;  ///< "config.json", "hf_quant_config.json", both joined with " and "; or ""
  std::string method;  ///< quant_method or quant_algo as it is spelled there
  QuantAlgo algo = QuantAlgo::kNone;
  int64_t group_size = 0;  ///< along K, for formats with groups: 16, 32, 128; else 0
  int64_t block_n = 0;     ///< for formats with blocks: 128; else 0
  int64_t block_k = 0;
  bool ue8m0_scales = false;  ///< scale_fmt: scales are powers of two
  KvQuant kv_cache = KvQuant::kNone;
  std::vector<std::string> exclude;  ///< globs of modules left unquantised, of both sources

  /// Whether a module ("model.layers.0.self_attn.q_a_proj") or one that holds it matches a glob of
  /// `exclude`. '*' stands for any text. Patterns that begin with "re:" are regular expressions and
  /// match nothing here.
  bool excludes(std::string_view module) const;
};

/// Whether `text` as a whole matches `pattern`. Linear space, at most |pattern| * |text| steps.
bool matches_glob(std::string_view pattern, std::string_view text);

/// Reads the declarations from the roots of config.json and hf_quant_config.json; either may be
/// null. Errors: Corrupt for a malformed declaration and for two that contradict each other (both
/// are named); Unsupported for a method or a group size that fathom does not know.
Result<QuantConfig> parse_quant_config(const Json* config, const Json* sidecar);

/// Reads the files of a checkpoint directory. hf_quant_config.json may be missing, config.json too.
Result<QuantConfig> read_quant_config(const std::string& directory);

/// The same with config.json at hand, or null where there is none.
Result<QuantConfig> read_quant_config(const std::string& directory, const Json* config);

}  // namespace fathom
