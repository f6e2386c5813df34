// config.json and generation_config.json: absurd, contradictory, or another model's.
#include "tests/e2e/bad_input.h"

namespace fathom::e2e {
namespace {

// One key's value replaced; `from` is the text of key and value in the fixture.
auto edited(const char* from, const char* to) {
  return [from, to](Scene& scene) {
    scene.edit("config.json", from, to);
    return scene.run();
  };
}

// A whole file replaced.
auto replaced(const char* name, const char* content) {
  return [name, content](Scene& scene) {
    scene.put(name, content);
    return scene.run();
  };
}

std::vector<BadCase> absurd_values() {
  return {
      {"0 layers", 65, edited("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 0")},
      {"1e9 layers", 65, edited("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1000000000")},
      {"1e9 layers as a number with an exponent", 65,
       edited("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1e9")},
      {"layers beyond 64 bits", 65,
       edited("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 99999999999999999999")},
      {"negative layers", 65, edited("\"num_hidden_layers\": 3", "\"num_hidden_layers\": -3")},
      {"layers as text", 65, edited("\"num_hidden_layers\": 3", "\"num_hidden_layers\": \"3\"")},
      {"hidden size missing", 65, edited("\"hidden_size\": 64,", "")},
      {"hidden size null", 65, edited("\"hidden_size\": 64", "\"hidden_size\": null")},
      {"experts beyond the widest router", 65,
       edited("\"n_routed_experts\": 8", "\"n_routed_experts\": 2052")},
      {"more tensors than a checkpoint may hold", 65,
       edited("\"n_routed_experts\": 8,\n  \"n_shared_experts\": 1,\n  \"norm_topk_prob\": "
              "true,\n  \"num_attention_heads\": 4,\n  \"num_experts_per_tok\": 3,\n  "
              "\"num_hidden_layers\": 3",
              "\"n_routed_experts\": 2048,\n  \"num_attention_heads\": 4,\n  "
              "\"num_experts_per_tok\": 3,\n  \"num_hidden_layers\": 1024")},
      {"experts chosen beyond those there are", 65,
       edited("\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 9")},
      {"no experts chosen", 65, edited("\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 0")},
      {"groups that do not divide the experts", 65, edited("\"n_group\": 4", "\"n_group\": 3")},
      {"groups kept beyond those there are", 65, edited("\"topk_group\": 2", "\"topk_group\": 5")},
      {"heads 0", 65, edited("\"num_attention_heads\": 4", "\"num_attention_heads\": 0")},
      {"head dimension 0", 65, edited("\"qk_nope_head_dim\": 16", "\"qk_nope_head_dim\": 0")},
      {"rotary dimension 0", 65, edited("\"qk_rope_head_dim\": 16", "\"qk_rope_head_dim\": 0")},
      {"rotary dimension odd", 65, edited("\"qk_rope_head_dim\": 16", "\"qk_rope_head_dim\": 15")},
      {"value dimension 0", 65, edited("\"v_head_dim\": 16", "\"v_head_dim\": 0")},
      {"vocabulary 0", 65, edited("\"vocab_size\": 4096", "\"vocab_size\": 0")},
      {"context of 2^63 - 1", 65,
       edited("\"max_position_embeddings\": 512",
              "\"max_position_embeddings\": 9223372036854775807")},
      {"rotary table beyond 1 GiB", 65,
       [](Scene& scene) {
         scene.edit("config.json", "\"qk_rope_head_dim\": 16", "\"qk_rope_head_dim\": 64");
         scene.edit("config.json", "\"max_position_embeddings\": 512",
                    "\"max_position_embeddings\": 16777216");
         return scene.run();
       }},
      {"end token outside the vocabulary", 65,
       edited("\"eos_token_id\": 1", "\"eos_token_id\": 4096")},
      {"negative end token", 65, edited("\"eos_token_id\": 1", "\"eos_token_id\": [1, -1]")},
      {"epsilon 0", 65, edited("\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 0.0")},
      {"rope factor NaN", 65, edited("\"factor\": 4", "\"factor\": NaN")},
      {"rope factor infinite", 65, edited("\"factor\": 4", "\"factor\": 1e999")},
      {"rope factor 0", 65, edited("\"factor\": 4", "\"factor\": 0")},
      {"rope factor negative", 65, edited("\"factor\": 4", "\"factor\": -4")},
      {"rope betas swapped", 65, edited("\"beta_fast\": 32", "\"beta_fast\": 0.5")},
      {"rope original context 0", 65,
       edited("\"original_max_position_embeddings\": 128",
              "\"original_max_position_embeddings\": 0")},
  };
}

std::vector<BadCase> strange_files() {
  return {
      {"config.json of zero bytes", 65, replaced("config.json", "")},
      {"config.json that is an array", 65, replaced("config.json", "[]")},
      {"config.json that is no JSON", 65, replaced("config.json", "{\"model_type\": }")},
      {"config.json with 100,000 open brackets", 65,
       [](Scene& scene) {
         scene.put("config.json", std::string(100'000, '['));
         return scene.run();
       }},
      {"config.json beyond the limit of its size", 65,
       [](Scene& scene) {
         scene.put("config.json", "{" + std::string(5 << 20, ' ') + "}");
         return scene.run();
       }},
      {"config.json missing", 65,
       [](Scene& scene) {
         std::filesystem::remove(scene.file("config.json"));
         return scene.run();
       }},
      {"duplicate key in config.json", 65,
       edited("\"hidden_size\": 64", "\"hidden_size\": 64, \"hidden_size\": 128")},
      {"duplicate key in rope_scaling", 65,
       edited("\"factor\": 4", "\"factor\": 4, \"factor\": 8")},
      {"terminal escapes in config.json", 78,
       edited("\"model_type\": \"deepseek_v3\"", "\"model_type\": \"\\u001b[31mred\"")},
      {"family that fathom does not know", 78,
       edited("\"model_type\": \"deepseek_v3\"", "\"model_type\": \"llama\"")},
      {"activation that fathom does not have", 78,
       edited("\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"")},
      {"rope type that fathom does not have", 78,
       edited("\"type\": \"yarn\",\n    \"rope_type\": \"yarn\"", "\"type\": \"longrope\"")},
      {"router that fathom does not have", 78,
       edited("\"topk_method\": \"noaux_tc\"", "\"topk_method\": \"best\"")},
  };
}

// A model whose tensors agree with a kv_lora_rank of 17.
ProgramResult with_latent_of_17(Scene& scene) {
  scene.edit("config.json", "\"kv_lora_rank\": 32", "\"kv_lora_rank\": 17");
  LooseSafetensors weights = scene.weights();
  for (LooseTensor& t : weights.tensors) {
    const auto reshape = [&t](std::string_view end, const char* shape, size_t bytes) {
      if (!t.name.ends_with(end)) return;
      t.shape = shape;
      t.data.resize(bytes);
    };
    reshape("kv_a_proj_with_mqa.weight", "[33, 64]", 33 * 64 * 2);
    reshape("kv_a_layernorm.weight", "[17]", 17 * 2);
    reshape("kv_b_proj.weight", "[128, 17]", 128 * 17 * 2);
  }
  weights.write();
  return scene.run();
}

std::vector<BadCase> contradictions() {
  return {
      {"config with wider experts than the tensors", 65,
       edited("\"moe_intermediate_size\": 32", "\"moe_intermediate_size\": 48")},
      {"config with experts of a width that fits no layout", 65,
       edited("\"moe_intermediate_size\": 32", "\"moe_intermediate_size\": 7")},
      {"config with rows of a width that fits no layout", 65,
       edited("\"hidden_size\": 64", "\"hidden_size\": 7")},
      {"config with another latent width than the tensors", 65,
       edited("\"kv_lora_rank\": 32", "\"kv_lora_rank\": 17")},
      {"config with a larger vocabulary than the tensors", 65,
       edited("\"vocab_size\": 4096", "\"vocab_size\": 5000")},
      {"config with more layers than the tensors", 65,
       edited("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4")},
      {"config with fewer layers than the tensors", 65,
       edited("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2")},
      {"config with more experts than the tensors", 65,
       edited("\"n_routed_experts\": 8", "\"n_routed_experts\": 16")},
      {"config with another head dimension than the tensors", 65,
       edited("\"v_head_dim\": 16", "\"v_head_dim\": 32")},
      {"config without the query latent that the tensors have", 65,
       edited("\"q_lora_rank\": 32", "\"q_lora_rank\": null")},
      {"latent width that no kernel takes", 78, with_latent_of_17},
      {"1,000 layers of absent experts", 65,
       edited("\"n_routed_experts\": 8,\n  \"n_shared_experts\": 1,\n  \"norm_topk_prob\": "
              "true,\n  \"num_attention_heads\": 4,\n  \"num_experts_per_tok\": 3,\n  "
              "\"num_hidden_layers\": 3",
              "\"n_routed_experts\": 256,\n  \"num_attention_heads\": 4,\n  "
              "\"num_experts_per_tok\": 3,\n  \"num_hidden_layers\": 1000")},
      {"quantize with 0 layers in the config", 65,
       [](Scene& scene) {
         scene.edit("config.json", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 0");
         return scene.fathom({"quantize", scene.model().string(), scene.beside("out").string()});
       }},
  };
}

// hf_quant_config.json, which every command that opens a checkpoint checks (flags_test.cc), though
// the tensors decide how weights are loaded.
auto declared(const char* text) {
  return [text](Scene& scene) {
    scene.put("hf_quant_config.json", text);
    return scene.fathom({"inspect", scene.model().string()});
  };
}

std::vector<BadCase> declarations() {
  return {
      {"hf_quant_config.json of zero bytes", 65, declared("")},
      {"hf_quant_config.json that is an array", 65, declared("[]")},
      {"declaration of an unknown format", 78,
       declared("{\"quantization\": {\"quant_algo\": \"FP3\"}}")},
      {"declaration of FP8 over weights in BF16", 0,
       edited("\"hidden_size\": 64",
              "\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": "
              "[128, 128]}, \"hidden_size\": 64"),
       true},
      {"declaration of another group size than the format has", 78,
       declared("{\"quantization\": {\"quant_algo\": \"NVFP4\", \"group_size\": 17}}")},
  };
}

std::vector<BadCase> generation_defaults() {
  constexpr const char* kFile = "generation_config.json";
  return {
      {"generation_config.json of zero bytes", 65, replaced(kFile, "")},
      {"generation_config.json that is an array", 65, replaced(kFile, "[]")},
      {"default temperature out of range", 65, replaced(kFile, "{\"temperature\": 3}")},
      {"default temperature NaN", 65, replaced(kFile, "{\"temperature\": NaN}")},
      {"default top_p 0", 65, replaced(kFile, "{\"top_p\": 0}")},
      {"default end token negative", 65, replaced(kFile, "{\"eos_token_id\": -1}")},
      {"duplicate key in generation_config.json", 65,
       replaced(kFile, "{\"top_p\": 0.9, \"top_p\": 0.8}")},
  };
}

}  // namespace

std::vector<BadCase> bad_config_cases() {
  std::vector<BadCase> cases;
  for (auto group :
       {absurd_values, strange_files, contradictions, declarations, generation_defaults}) {
    for (BadCase& c : group())
      cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace fathom::e2e
