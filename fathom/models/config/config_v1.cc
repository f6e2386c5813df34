#include "fathom/models/config/config_v1.h"

#include "fathom/models/config/config_limits.h"

namespace fathom {

void read_v1(ConfigReader& in, ModelConfig& c) {
  c.hidden_size = in.integer("hidden_size", 1, kMaxHidden);
  c.num_hidden_layers = in.integer("num_hidden_layers", 1, kMaxLayers);
  c.num_attention_heads = in.integer("num_attention_heads", 1, kMaxHeads);
  c.num_key_value_heads = in.integer_or("num_key_value_heads", 1, kMaxHeads, c.num_attention_heads);
  c.intermediate_size = in.integer("intermediate_size", 1, kMaxIntermediate);
  const int64_t channels = c.hidden_size / c.num_attention_heads;
  if (in.integer_or("head_dim", 1, kMaxHeadDim, channels) != channels) {
    in.fail_value("head_dim", str_cat(channels, " (hidden_size / num_attention_heads)"));
  }
  c.qk_nope_head_dim = 0;
  c.qk_rope_head_dim = channels;
  c.v_head_dim = channels;
}

void refuse_later_keys(ConfigReader& in) {
  if (const std::string method = in.text_or("topk_method", "greedy"); method != "greedy") {
    in.fail(unsupported(str_cat(in.what(), ": topk_method is \"", method.substr(0, 64),
                                "\", expected \"greedy\" for model_type \"deepseek\"")));
  }
  if (const double f = in.number_or("routed_scaling_factor", 1e-6, 1e6, 1.0); f != 1.0) {
    in.fail(unsupported(str_cat(in.what(), ": routed_scaling_factor is ", f,
                                ", expected 1 for model_type \"deepseek\"")));
  }
  if (in.boolean_or("rope_interleave", false)) {
    in.fail(unsupported(str_cat(in.what(), ": rope_interleave is true, expected false for ",
                                "model_type \"deepseek\"")));
  }
}

Status validate_v1(const ModelConfig& c, std::string_view what) {
  const int64_t heads = c.num_attention_heads;
  if (heads < 1 || c.hidden_size % heads != 0) {
    return contradiction(what, "num_attention_heads", heads,
                         str_cat("a divisor of ", c.hidden_size, " (hidden_size)"));
  }
  const int64_t channels = c.hidden_size / heads;
  if (channels % 2 != 0 || channels > kMaxHeadDim) {
    return contradiction(what, "hidden_size", c.hidden_size,
                         str_cat("an even number of channels a head, at most ", kMaxHeadDim,
                                 ", not ", channels, ", for ", heads, " heads"));
  }
  if (c.qk_rope_head_dim != channels || c.qk_nope_head_dim != 0 || c.v_head_dim != channels) {
    return contradiction(what, "qk_rope_head_dim", c.qk_rope_head_dim,
                         str_cat(channels, ": all channels of a head are rotated"));
  }
  if (heads % c.num_key_value_heads != 0) {
    return contradiction(what, "num_key_value_heads", c.num_key_value_heads,
                         str_cat("a divisor of ", heads, " (num_attention_heads)"));
  }
  return {};
}

}  // namespace fathom
