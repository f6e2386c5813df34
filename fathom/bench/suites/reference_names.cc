#include "fathom/bench/suites/reference_names.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "fathom/base/str_cat.h"
#include "fathom/kernels/attn/mla_decode/mla_decode.h"
#include "fathom/tensor/view.h"

namespace fathom {
namespace {

constexpr ReferenceName kNames[] = {
    {"rmsnorm", 1, "Norm"},
    {"fused_add_rmsnorm", 2, "Norm"},
    {"silu_and_mul", 13, "Activation"},
    {"gelu_and_mul"},
    {"gelu_tanh_and_mul"},
    {"apply_rope_with_cos_sin_cache_inplace", 11, "RoPE"},
    {"rotary_embedding"},
    {"mla_rope_quantize_fp8", 10, "Attention"},
    {"sgl_per_token_quant_fp8"},
    {"sgl_per_token_group_quant_fp8"},
    {"sgl_per_token_group_quant_int8"},
    {"sgl_per_token_group_quant_8bit"},
    {"scaled_fp4_experts_quant", 18, "MoE"},
    {"cutlass_scaled_fp4_mm", 3, "GEMM"},
    {"fp8_scaled_mm"},
    {"fp8_blockwise_scaled_mm"},
    {"int8_scaled_mm"},
    {"qserve_w4a8_per_chn_gemm"},
    {"qserve_w4a8_per_group_gemm"},
    {"bmm_fp8", 6, "BMM"},
    {"dsv3_fused_a_gemm", 4, "GEMM"},
    {"dsv3_router_gemm", 5, "GEMM"},
    {"cutlass_mla_decode", 7, "Attention"},
    {"cutlass_mla_get_workspace_size"},
    {"trtllm_batch_decode_with_kv_cache_mla", 8, "Attention"},
    {"trtllm_ragged_attention_deepseek", 9, "Attention"},
    {"merge_state"},
    {"merge_state_v2"},
    {"concat_mla_k", 12, "Concat"},
    {"concat_mla_absorb_q", 0, "Concat"},
    {"topk_softmax", 14, "MoE Routing"},
    {"topk_sigmoid", 15, "MoE Routing"},
    {"moe_fused_gate", 16, "MoE Routing"},
    {"moe_align_block_size", 21, "MoE"},
    {"prepare_moe_input", 17, "MoE"},
    {"get_cutlass_w4a8_moe_mm_data"},
    {"shuffle_rows"},
    {"apply_shuffle_mul_sum", 20, "MoE"},
    {"moe_sum_reduce"},
    {"cutlass_fp4_group_mm", 19, "MoE"},
    {"fp8_blockwise_scaled_grouped_mm"},
    {"es_fp8_blockwise_scaled_grouped_mm"},
    {"cutlass_w4a8_moe_mm"},
    {"fused_moe_kernel", 23, "MoE"},
    {"trtllm_bf16_moe"},
    {"trtllm_fp8_block_scale_moe"},
    {"trtllm_fp4_block_scale_moe", 22, "MoE"},
    {"hadamard_transform"},
    {"fast_topk_v2"},
    {"fast_topk_transform_fused"},
    {"fast_topk_transform_ragged_fused"},
    {"min_p_sampling_from_probs"},
    {"top_k_top_p_sampling_from_probs"},
    {"top_k_renorm_prob"},
    {"top_p_renorm_prob"},
    {"fast_topk"},
    {"build_tree_kernel_efficient"},
    {"verify_tree_greedy"},
    {"tree_speculative_sampling_target_only"},
    {"weak_ref_tensor"},
};

/// Words for kernels outside the benchmark, by family.
constexpr std::pair<std::string_view, std::string_view> kFamilies[] = {
    {"norm", "Norm"},      {"act", "Activation"}, {"rope", "RoPE"},
    {"attn", "Attention"}, {"gemm", "GEMM"},      {"embed", "Embedding"}};

const KernelEntry* find_in(std::span<const KernelEntry> kernels, std::string_view name) {
  for (const KernelEntry& kernel : kernels) {
    const NameList& names = kernel.info.reference_names;
    if (std::find(names.begin(), names.end(), name) != names.end()) return &kernel;
  }
  return nullptr;
}

std::string backends_of(const KernelEntry& kernel) {
  std::string out = kernel.cpu ? "cpu" : "";
  if (kernel.cuda) out += out.empty() ? "cuda" : ", cuda";
  return out;
}

ReferenceHome home_in(const KernelEntry& kernel, std::string_view name) {
  return {.name = name,
          .home = std::string(kernel.info.name),
          .folder = str_cat("kernels/", kernel.family, "/", kernel.group),
          .backends = backends_of(kernel),
          .status = "covered",
          .kernel = &kernel,
          .covered = true};
}

}  // namespace

std::span<const ReferenceName> reference_names() {
  return kNames;
}

std::vector<std::string> published_reference_names() {
  std::vector<ReferenceName> published;
  for (const ReferenceName& n : kNames)
    if (n.published > 0) published.push_back(n);
  std::sort(published.begin(), published.end(), [](const ReferenceName& a, const ReferenceName& b) {
    return a.published < b.published;
  });
  std::vector<std::string> names;
  for (const ReferenceName& n : published)
    names.emplace_back(n.name);
  return names;
}

std::string_view kernel_category(std::string_view kernel) {
  const KernelEntry* entry = find_kernel(kernel);
  if (entry == nullptr) return "MoE";
  const NameList& names = entry->info.reference_names;
  for (const ReferenceName& n : kNames) {
    const bool of_kernel = std::find(names.begin(), names.end(), n.name) != names.end();
    if (of_kernel && !n.category.empty()) return n.category;
  }
  for (const auto& [family, word] : kFamilies)
    if (family == entry->family) return word;
  return "MoE";
}

ReferenceHome find_reference_home(std::string_view name, std::span<const KernelEntry> kernels) {
  if (const KernelEntry* kernel = find_in(kernels, name)) return home_in(*kernel, name);
  // A second reference to memory that does not keep it alive is what every View is.
  static_assert(std::is_trivially_copyable_v<View> && std::is_trivially_destructible_v<View>);
  if (name == "weak_ref_tensor") {
    return {.name = name,
            .home = "View",
            .folder = "tensor",
            .backends = "cpu",
            .status = "View, by construction",
            .covered = true};
  }
  if (name == "cutlass_mla_get_workspace_size") {
    const KernelEntry* decode = find_in(kernels, *MlaDecode::kInfo.reference_names.begin());
    if (decode != nullptr && decode->has_workspace) {
      ReferenceHome home = home_in(*decode, name);
      home.home = home.status = "MlaDecode::workspace()";
      return home;
    }
  }
  return {.name = name, .home = "-", .folder = "-", .backends = "-", .status = "missing"};
}

std::vector<ReferenceHome> reference_homes(std::span<const KernelEntry> kernels) {
  std::vector<ReferenceHome> homes;
  for (const ReferenceName& n : kNames)
    homes.push_back(find_reference_home(n.name, kernels));
  return homes;
}

void hold_to_rows(std::vector<ReferenceHome>& homes, std::span<const BenchRow> rows) {
  for (ReferenceHome& home : homes) {
    if (home.kernel == nullptr) continue;
    int passed = 0;
    int failed = 0;
    for (const BenchRow& row : rows) {
      if (row.kernel != home.kernel->info.name) continue;
      const bool wrong = row.status == RowStatus::kWrong || row.status == RowStatus::kCrashed;
      failed += wrong ? 1 : 0;
      passed += !wrong && row.passed == "true" ? 1 : 0;
    }
    if (failed == 0 && passed > 0) continue;
    home.covered = false;
    home.status = failed > 0 ? "wrong" : "not checked";
  }
}

std::string write_reference_table(std::span<const ReferenceHome> homes) {
  using Line = std::array<std::string, 5>;
  std::vector<Line> lines = {{"reference name", "fathom", "folder", "backends", "status"}};
  for (const ReferenceHome& h : homes)
    lines.push_back({std::string(h.name), h.home, h.folder, h.backends, h.status});
  std::array<size_t, 5> widths{};
  for (const Line& line : lines)
    for (size_t i = 0; i < line.size(); ++i)
      widths[i] = std::max(widths[i], line[i].size());
  std::string out;
  for (size_t row = 0; row < lines.size(); ++row) {
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string& text = lines[row][i];
      str_append(out, str_cat("| ", text, std::string(widths[i] - text.size() + 1, ' ')));
    }
    out += "|\n";
    if (row > 0) continue;
    for (size_t width : widths)
      str_append(out, str_cat("|", std::string(width + 2, '-')));
    out += "|\n";
  }
  return out;
}

std::string reference_coverage_line(std::span<const ReferenceHome> homes) {
  size_t covered = 0;
  std::string rest;
  for (const ReferenceHome& h : homes) {
    if (h.covered) {
      ++covered;
    } else {
      str_append(rest, str_cat(rest.empty() ? "; " : ", ", h.name, " (", h.status, ")"));
    }
  }
  return str_cat(covered, " of ", homes.size(), " reference names covered", rest);
}

}  // namespace fathom
