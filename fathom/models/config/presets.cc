#include "fathom/models/config/presets.h"

#include <iterator>

namespace fathom {
namespace {

// Sizes: config.json of deepseek-ai/deepseek-moe-16b-base.
ModelConfig moe_16b() {
  ModelConfig c;
  c.model_type = "deepseek";
  c.architecture = "DeepseekForCausalLM";
  c.hidden_size = 2048;
  c.num_hidden_layers = 28;
  c.num_attention_heads = 16;
  c.num_key_value_heads = 16;
  c.qk_rope_head_dim = 128;
  c.v_head_dim = 128;
  c.intermediate_size = 10944;
  c.n_routed_experts = 64;
  c.n_shared_experts = 2;
  c.num_experts_per_tok = 6;
  c.moe_intermediate_size = 1408;
  c.first_k_dense_replace = 1;
  c.topk_method = TopkMethod::kGreedy;
  c.vocab_size = 102400;
  c.max_position_embeddings = 4096;
  c.rope_interleave = false;
  c.bos_token_id = 100000;
  c.eos_token_ids = {100001};
  return c;
}

// Sizes: config.json of deepseek-ai/DeepSeek-V2-Lite, -V2, -V3, -R1, -V3.1, -V3.2.
ModelConfig base(std::string_view type, std::string_view architecture) {
  ModelConfig c;
  c.model_type = type;
  c.architecture = architecture;
  c.kv_lora_rank = 512;
  c.qk_nope_head_dim = 128;
  c.qk_rope_head_dim = 64;
  c.v_head_dim = 128;
  c.max_position_embeddings = 163840;
  c.rope_scaling.yarn = true;
  c.rope_scaling.factor = 40.0;
  c.rope_scaling.original_max_position_embeddings = 4096;
  return c;
}

ModelConfig v2_lite() {
  ModelConfig c = base("deepseek_v2", "DeepseekV2ForCausalLM");
  c.hidden_size = 2048;
  c.num_hidden_layers = 27;
  c.num_attention_heads = 16;
  c.intermediate_size = 10944;
  c.n_routed_experts = 64;
  c.n_shared_experts = 2;
  c.num_experts_per_tok = 6;
  c.moe_intermediate_size = 1408;
  c.first_k_dense_replace = 1;
  c.topk_method = TopkMethod::kGreedy;
  c.vocab_size = 102400;
  c.bos_token_id = 100000;
  c.eos_token_ids = {100001};
  c.rope_scaling.mscale = 0.707;
  c.rope_scaling.mscale_all_dim = 0.707;
  return c;
}

ModelConfig v2() {
  ModelConfig c = v2_lite();
  c.hidden_size = 5120;
  c.num_hidden_layers = 60;
  c.num_attention_heads = 128;
  c.q_lora_rank = 1536;
  c.intermediate_size = 12288;
  c.n_routed_experts = 160;
  c.moe_intermediate_size = 1536;
  c.n_group = 8;
  c.topk_group = 3;
  c.topk_method = TopkMethod::kGroupLimitedGreedy;
  c.routed_scaling_factor = 16.0;
  return c;
}

ModelConfig v3() {
  ModelConfig c = base("deepseek_v3", "DeepseekV3ForCausalLM");
  c.hidden_size = 7168;
  c.num_hidden_layers = 61;
  c.num_attention_heads = 128;
  c.q_lora_rank = 1536;
  c.intermediate_size = 18432;
  c.n_routed_experts = 256;
  c.n_shared_experts = 1;
  c.num_experts_per_tok = 8;
  c.moe_intermediate_size = 2048;
  c.first_k_dense_replace = 3;
  c.n_group = 8;
  c.topk_group = 4;
  c.topk_method = TopkMethod::kNoauxTc;
  c.norm_topk_prob = true;
  c.routed_scaling_factor = 2.5;
  c.vocab_size = 129280;
  c.bos_token_id = 0;
  c.eos_token_ids = {1};
  c.num_nextn_predict_layers = 1;
  c.rope_scaling.mscale = 1.0;
  c.rope_scaling.mscale_all_dim = 1.0;
  return c;
}

ModelConfig v32() {
  ModelConfig c = v3();
  c.model_type = "deepseek_v32";
  c.architecture = "DeepseekV32ForCausalLM";
  c.index_n_heads = 64;
  c.index_head_dim = 128;
  c.index_topk = 2048;
  return c;
}

// Sizes: config.json of deepseek-ai/DeepSeek-V4-Flash and -V4-Pro (commit 60d8d70 of Flash). What
// only the layers' list tells, by layer: 0 has a window alone, 4 chosen rows, 128 every row; behind
// the last layer stands the draft layer, with a window alone.
ModelConfig v4(int64_t layers, CompressRatio first_two) {
  ModelConfig c;
  c.model_type = "deepseek_v4";
  c.architecture = "DeepseekV4ForCausalLM";
  c.num_hidden_layers = layers;
  c.num_nextn_predict_layers = 1;
  for (int64_t i = 0; i < layers; ++i) {
    c.compress_ratios.push_back(i < 2        ? first_two
                                : i % 2 == 0 ? CompressRatio::kSparse
                                             : CompressRatio::kHeavy);
  }
  c.compress_ratios.push_back(CompressRatio::kNone);
  c.head_dim = 512;
  c.qk_rope_head_dim = 64;
  c.qk_nope_head_dim = 448;
  c.o_lora_rank = 1024;
  c.sliding_window = 128;
  c.index_n_heads = 64;
  c.index_head_dim = 128;
  c.n_shared_experts = 1;
  c.num_experts_per_tok = 6;
  c.num_hash_layers = 3;
  c.topk_method = TopkMethod::kSqrtSoftplus;
  c.norm_topk_prob = true;
  c.swiglu_limit = 10.0;
  c.hc_mult = 4;
  c.hc_sinkhorn_iters = 20;
  c.hc_eps = 1e-6;
  c.vocab_size = 129280;
  c.bos_token_id = 0;
  c.eos_token_ids = {1};
  c.max_position_embeddings = 1048576;
  c.compress_rope_theta = 160000.0;
  c.rope_scaling.yarn = true;
  c.rope_scaling.factor = 16.0;
  c.rope_scaling.original_max_position_embeddings = 65536;
  c.rope_scaling.mscale = 0.0;
  return c;
}

ModelConfig v4_flash() {
  ModelConfig c = v4(43, CompressRatio::kNone);
  c.hidden_size = 4096;
  c.num_attention_heads = 64;
  c.q_lora_rank = 1024;
  c.o_groups = 8;
  c.index_topk = 512;
  c.n_routed_experts = 256;
  c.moe_intermediate_size = 2048;
  c.intermediate_size = 2048;
  c.routed_scaling_factor = 1.5;
  return c;
}

ModelConfig v4_pro() {
  ModelConfig c = v4(61, CompressRatio::kHeavy);
  c.hidden_size = 7168;
  c.num_attention_heads = 128;
  c.q_lora_rank = 1536;
  c.o_groups = 16;
  c.index_topk = 1024;
  c.n_routed_experts = 384;
  c.moe_intermediate_size = 3072;
  c.intermediate_size = 3072;
  c.routed_scaling_factor = 2.5;
  return c;
}

struct PresetRow {
  std::string_view name;
  ModelConfig (*config)();
  PresetFormats formats;
};

constexpr PresetFormats all_linear(Format format, Format experts) {
  return {.attention = format, .output = format, .mlp = format, .experts = experts, .draft = true};
}

// V4's draft layer is stored like the others, with projections of its input besides.
constexpr PresetFormats v4_formats(Format experts, Format draft_experts) {
  PresetFormats f = all_linear(Format::kFp8BlockUe8m0, experts);
  f.draft_experts = draft_experts;
  f.draft_input = Format::kFp8BlockUe8m0;
  return f;
}

constexpr PresetFormats kBf16{};
constexpr PresetFormats kFp8 = all_linear(Format::kFp8Block, Format::kFp8Block);
constexpr PresetFormats kNvfp4{
    .output = Format::kNvfp4, .mlp = Format::kNvfp4, .experts = Format::kNvfp4};
constexpr PresetFormats kMxfp4 = all_linear(Format::kFp8Block, Format::kMxfp4);
constexpr PresetFormats kV4Fp8 = v4_formats(Format::kFp8BlockUe8m0, Format::kFp8BlockUe8m0);
constexpr PresetFormats kV4Mxfp4 = v4_formats(Format::kMxfp4, Format::kMxfp4);
constexpr PresetFormats kV4Nvfp4 = v4_formats(Format::kNvfp4, Format::kMxfp4);
constexpr PresetFormats kNvfp4All = [] {
  PresetFormats f = all_linear(Format::kNvfp4, Format::kNvfp4);
  f.compressors = Format::kNvfp4;
  return f;
}();

struct FormatRow {
  std::string_view name;
  PresetFormats formats;
  PresetFormats of_v4;
};

constexpr FormatRow same_for_all(std::string_view name, const PresetFormats& formats) {
  return {.name = name, .formats = formats, .of_v4 = formats};
}

// In the order of PresetFormatName.
constexpr FormatRow kFormats[] = {
    same_for_all("bf16", kBf16),
    {"fp8_block", kFp8, kV4Fp8},
    {"nvfp4", kNvfp4, kV4Nvfp4},
    {"mxfp4", kMxfp4, kV4Mxfp4},
    same_for_all("fp8", all_linear(Format::kFp8Channel, Format::kFp8Channel)),
    same_for_all("int8", all_linear(Format::kInt8Channel, Format::kInt8Channel)),
    same_for_all("w4a8", all_linear(Format::kW4a8Channel, Format::kW4Fp8)),
    same_for_all("w4a8_group", all_linear(Format::kW4a8Group, Format::kW4Fp8)),
    same_for_all("nvfp4_all", kNvfp4All),
};

const PresetFormats& formats_in(const FormatRow& row, const ModelConfig& config) {
  return config.is_v4() ? row.of_v4 : row.formats;
}

// V3, R1, V3.1 and V3.2 are published in FP8; V3.1's scales are powers of two, stored as float32.
// V4: deepseek-ai/DeepSeek-V4-Flash and -Pro have experts in MXFP4, the draft layer's among them;
// nvidia/DeepSeek-V4-Flash-NVFP4 and -Pro-NVFP4 differ in the experts of the main layers alone.
constexpr PresetRow kPresets[] = {
    {"deepseek-r1-nvfp4", v3, kNvfp4},
    {"deepseek-v3-fp8", v3, kFp8},
    {"deepseek-v3", v3, kFp8},
    {"deepseek-r1", v3, kFp8},
    {"deepseek-v2", v2, kBf16},
    {"deepseek-v2-lite", v2_lite, kBf16},
    {"deepseek-moe-16b", moe_16b, kBf16},
    {"deepseek-v3.1", v3, kFp8},
    {"deepseek-v3.2", v32, kFp8},
    {"deepseek-v4-flash", v4_flash, kV4Mxfp4},
    {"deepseek-v4-pro", v4_pro, kV4Mxfp4},
    {"deepseek-v4-flash-nvfp4", v4_flash, kV4Nvfp4},
    {"deepseek-v4-pro-nvfp4", v4_pro, kV4Nvfp4},
};

Format format_of(const PresetFormats& f, const WeightSpec& spec) {
  if (spec.role == WeightRole::kHashTable) return Format::kI64;
  if (is_kept_in_f32(spec.role)) return Format::kF32;
  if (spec.draft && !f.draft) return Format::kBf16;
  switch (spec.role) {
    case WeightRole::kAttention:
      return f.attention;
    case WeightRole::kOutput:
      return f.output;
    case WeightRole::kOutputGroups:  // kernels for these products read bf16 and FP8 blocks
      return f.attention == Format::kFp8Block || f.attention == Format::kFp8BlockUe8m0
                 ? f.attention
                 : Format::kBf16;
    case WeightRole::kMlp:
    case WeightRole::kSharedExpert:
      return f.mlp;
    case WeightRole::kExpert:
      return spec.draft && f.draft_experts != Format::kNone ? f.draft_experts : f.experts;
    case WeightRole::kDraft:
      return f.draft_input;
    case WeightRole::kCompressor:
      return f.compressors;
    case WeightRole::kEmbedding:
    case WeightRole::kHead:
    case WeightRole::kNorm:
    case WeightRole::kRouter:
    case WeightRole::kRouterBias:
    case WeightRole::kStream:
    case WeightRole::kAttentionBias:
    case WeightRole::kHashTable:
      break;
  }
  return Format::kBf16;
}

}  // namespace

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const PresetRow& row : kPresets)
    names.push_back(row.name);
  return names;
}

Result<Preset> find_preset(std::string_view name) {
  for (const PresetRow& row : kPresets) {
    if (row.name == name) {
      return Preset{.name = row.name, .config = row.config(), .formats = row.formats};
    }
  }
  std::string message = str_cat("no preset is called \"", name, "\"; there are");
  for (const PresetRow& row : kPresets)
    str_append(message, str_cat(" ", row.name));
  return not_found(std::move(message));
}

std::string_view preset_format_name(PresetFormatName name) {
  return kFormats[static_cast<size_t>(name)].name;
}

PresetFormats preset_formats(PresetFormatName name, const ModelConfig& config) {
  return formats_in(kFormats[static_cast<size_t>(name)], config);
}

Result<PresetFormats> preset_formats(std::string_view name, const ModelConfig& config) {
  for (const FormatRow& row : kFormats) {
    if (row.name == name) return formats_in(row, config);
  }
  std::string message = str_cat("--format ", name, ", expected");
  for (const FormatRow& row : kFormats)
    str_append(message, str_cat(" ", row.name));
  return invalid_argument(std::move(message));
}

std::vector<std::string_view> preset_format_names() {
  std::vector<std::string_view> names;
  for (const FormatRow& row : kFormats)
    names.push_back(row.name);
  return names;
}

FormatSource formats_of(const PresetFormats& formats) {
  return [formats](const WeightSpec& spec) -> Result<Format> { return format_of(formats, spec); };
}

}  // namespace fathom
