#include "fathom/bench/summary/layer.h"

#include <algorithm>

namespace fathom {
namespace {

struct Entry {
  LayerOp op;
  std::string_view phase{};  // the only one; empty: both
  int64_t most_tokens = 0;   // 0: any number
  int64_t least_tokens = 1;
};

// Above 16 tokens the low-latency products give way to bf16_gemm.
constexpr int64_t kFew = 16;

constexpr Entry kLayer[] = {
    {{"input_layernorm", "add_rmsnorm", "input_layernorm"}},
    {{"fused_qkv_a_proj", "latent_down_gemm", "fused_qkv_a_proj_with_mqa"}, "", kFew},
    {{"fused_qkv_a_proj", "bf16_gemm", "fused_qkv_a_proj_with_mqa"}, "", 0, kFew + 1},
    {{"q_a_layernorm", "rmsnorm", "q_a_layernorm"}},
    {{"q_b_proj", "nvfp4_gemm", "q_b_proj"}},
    {{"kv_a_layernorm", "rmsnorm", "kv_a_layernorm"}},
    {{"rotary_emb", "rope_inplace", "rotary_emb"}},
    {{"kv_write", "kv_write", "kv_write"}},
    {{"q_nope_wkc", "fp8_bmm", "w_kc"}, "decode"},
    {{"concat_mla_absorb_q", "concat_absorbed_q", "concat_mla_absorb_q"}, "decode"},
    {{"attn_mqa", "mla_decode", "attn_mqa"}, "decode"},
    {{"attn_wvc", "fp8_bmm", "w_vc"}, "decode"},
    {{"kv_b_proj", "nvfp4_gemm", "kv_b_proj"}, "prefill"},
    {{"concat_and_cast_mha_k", "concat_k", "concat_and_cast_mha_k"}, "prefill"},
    {{"attn_mha", "ragged_attention", "attn_mha"}, "prefill"},
    {{"o_proj", "nvfp4_gemm", "o_proj"}},
    {{"post_attention_layernorm", "add_rmsnorm", "post_attention_layernorm"}},
    {{"gate", "router_gemm", "gate"}, "", kFew},
    {{"gate", "bf16_gemm", "gate"}, "", 0, kFew + 1},
    {{"topk", "grouped_topk_gate", "topk"}},
    {{"shared_experts_gate_up", "nvfp4_gemm", "gate_up_proj"}},
    {{"shared_experts_act_fn", "silu_mul", "act_fn"}},
    {{"shared_experts_down", "nvfp4_gemm", "down_proj"}},
    {{"prepare_moe_input", "route_offsets", "prepare_moe_input"}},
    {{"shuffle_rows", "permute_rows", "shuffle_rows"}},
    {{"experts_gate_up", "nvfp4_group_gemm", "gate_up_proj"}},
    {{"act_fn", "silu_mul", "act_fn"}},
    {{"experts_down", "nvfp4_group_gemm", "down_proj"}},
    {{"moe_combine", "unpermute_weighted_sum", "apply_shuffle_mul_sum"}},
};

struct Category {
  std::string_view kernel, name;
};

constexpr Category kCategories[] = {{"rmsnorm", "Norm"},
                                    {"add_rmsnorm", "Norm"},
                                    {"nvfp4_gemm", "GEMM"},
                                    {"latent_down_gemm", "GEMM"},
                                    {"router_gemm", "GEMM"},
                                    {"bf16_gemm", "GEMM"},
                                    {"fp8_bmm", "BMM"},
                                    {"mla_decode", "Attention"},
                                    {"mla_decode_multi", "Attention"},
                                    {"ragged_attention", "Attention"},
                                    {"mla_rope_quant_fp8", "Attention"},
                                    {"kv_write", "Attention"},
                                    {"rope_inplace", "RoPE"},
                                    {"concat_k", "Concat"},
                                    {"concat_absorbed_q", "Concat"},
                                    {"silu_mul", "Activation"},
                                    {"topk_softmax", "MoE Routing"},
                                    {"topk_sigmoid", "MoE Routing"},
                                    {"grouped_topk_gate", "MoE Routing"}};

}  // namespace

std::vector<LayerOp> layer_ops(const ReferencePoint& point) {
  std::vector<LayerOp> ops;
  for (const Entry& e : kLayer) {
    const bool phase = e.phase.empty() || e.phase == point.phase;
    const bool few_enough = e.most_tokens == 0 || point.tokens() <= e.most_tokens;
    if (phase && few_enough && point.tokens() >= e.least_tokens) ops.push_back(e.op);
  }
  return ops;
}

const BenchRow* row_of(std::span<const BenchRow> rows,
                       const LayerOp& op,
                       const ReferencePoint& point) {
  const std::string name = reference_case_name(op.op, point);
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const BenchRow& r) {
    return r.kernel == op.kernel && r.case_name == name && r.status == RowStatus::kOk;
  });
  return row == rows.end() ? nullptr : &*row;
}

Result<LayerTime> layer_time(std::span<const BenchRow> rows, const ReferencePoint& point) {
  LayerTime time;
  std::string missing;
  for (const LayerOp& op : layer_ops(point)) {
    const BenchRow* row = row_of(rows, op, point);
    if (row == nullptr || !row->us_median) {
      str_append(missing, str_cat(missing.empty() ? "" : ", ", op.op, " (", op.kernel, ")"));
      continue;
    }
    time.us += *row->us_median;
    time.rows.push_back(row);
  }
  if (missing.empty()) return time;
  return not_found(str_cat("the layer at ", point.name(), " has no time: no row of ", missing));
}

std::string_view kernel_category(std::string_view kernel) {
  for (const Category& c : kCategories) {
    if (c.kernel == kernel) return c.name;
  }
  return "MoE";
}

}  // namespace fathom
