// Checkpoints of DeepSeek-V4: compressors, hash tables, and scales of several formats.
#include "tests/e2e/bad_input.h"

namespace fathom::e2e {
namespace {

constexpr const char* kTable = "layers.1.ffn.gate.tid2eid";
constexpr const char* kExpert = "layers.2.ffn.experts.3.w3";
constexpr const char* kShared = "layers.2.ffn.shared_experts.w1";

BadCase v4(std::string name, int exit_code, std::function<ProgramResult(Scene&)> run) {
  return {.name = std::move(name),
          .exit_code = exit_code,
          .run = std::move(run),
          .only_warns = false,
          .fixture = "micro-v4"};
}

// The model without the tensors whose names hold a text.
auto without(const char* part) {
  return [part](Scene& scene) {
    LooseSafetensors weights = scene.weights();
    std::erase_if(weights.tensors,
                  [&](const LooseTensor& t) { return t.name.find(part) != t.name.npos; });
    weights.write();
    return scene.run();
  };
}

auto changed(void (*change)(LooseSafetensors&)) {
  return [change](Scene& scene) {
    LooseSafetensors weights = scene.weights();
    change(weights);
    weights.write();
    return scene.run();
  };
}

// A byte of a tensor of the model in another format.
auto overwritten(const char* format, const std::string& tensor, size_t at, char byte) {
  return [=](Scene& scene) {
    scene.quantize(format);
    LooseSafetensors weights = scene.weights();
    weights[tensor].data[at] = byte;
    weights.write();
    return scene.run();
  };
}

std::string id_of(int64_t id) {
  std::string bytes(sizeof id, '\0');
  std::memcpy(bytes.data(), &id, sizeof id);
  return bytes;
}

// Some weights in `first`, those that match `pattern` in `second`; config.json says what the writer
// says of several formats, or only the second one.
auto mixed(const char* first, const char* second, const char* pattern) {
  return [=](Scene& scene) {
    scene.quantize(first, {"--scope", "experts", "--ignore", pattern});
    std::vector<std::string> rest{"--scope", "experts"};
    for (const char* layer : {"0", "1", "2", "3", "4"}) {
      for (const char* expert : {"0", "1", "2", "3", "4", "5", "6", "7"}) {
        const std::string module = std::string("layers.") + layer + ".ffn.experts." + expert + ".w";
        if (module.starts_with(std::string(pattern).substr(0, std::string(pattern).find('*'))))
          continue;
        rest.insert(rest.end(), {"--ignore", module + "*"});
      }
    }
    scene.quantize(second, rest);
    return scene.fathom({"inspect", scene.model().string()});
  };
}

}  // namespace

std::vector<BadCase> bad_v4_cases() {
  return {
      v4("compressor without its projection", 65, without("layers.2.attn.compressor.wkv.")),
      v4("indexer without its compressor", 65, without("layers.3.attn.indexer.compressor.")),
      v4("compressor without position biases", 65, without("layers.4.attn.compressor.ape")),
      v4("hash table missing", 65, without(kTable)),
      v4("hash table with an expert beyond the last one", 65,
         changed([](LooseSafetensors& w) { w[kTable].data.replace(800, 8, id_of(8)); })),
      v4("hash table with a negative expert", 65, changed([](LooseSafetensors& w) {
           w[kTable].data.replace(24 * 4095 + 16, 8, id_of(-1));
         })),
      v4("hash table of a smaller vocabulary", 65, changed([](LooseSafetensors& w) {
           w[kTable].shape = "[2048, 3]";
           w[kTable].data.resize(2048 * 3 * 8);
         })),
      v4("hash table in float32", 78, changed([](LooseSafetensors& w) {
           w[kTable].dtype = "F32";
           w[kTable].data.resize(4096 * 3 * 4);
         })),
      v4("MXFP4 block scale NaN", 65,
         overwritten("mxfp4", std::string(kExpert) + ".scale", 7, '\xFF')),
      v4("FP8 block scale NaN, power of two", 65,
         overwritten("fp8_block_ue8m0", std::string(kShared) + ".scale", 0, '\xFF')),
      v4("NVFP4 block scale NaN, names of V4", 65,
         overwritten("nvfp4", std::string(kExpert) + ".weight_scale", 5, '\x7F')),
      v4("MXFP4 weight without scales", 65,
         [](Scene& scene) {
           scene.quantize("mxfp4");
           return without("layers.2.ffn.experts.3.w3.scale")(scene);
         }),
      v4("MXFP4 weight with scales under two names", 65,
         [](Scene& scene) {
           scene.quantize("mxfp4");
           LooseSafetensors weights = scene.weights();
           LooseTensor again = weights[std::string(kExpert) + ".scale"];
           again.name = std::string(kExpert) + ".weight_scale";
           weights.tensors.push_back(again);
           weights.write();
           return scene.run();
         }),
      v4("experts of a layer in two formats", 78,
         mixed("mxfp4", "nvfp4", "layers.2.ffn.experts.3.*")),
      v4("experts in two formats, config.json naming one", 65,
         [](Scene& scene) {
           mixed("mxfp4", "nvfp4", "layers.2.*")(scene);
           scene.edit("config.json", "MIXED_PRECISION", "NVFP4");
           return scene.run();
         }),
      v4("FP8 scales in two formats, config.json naming one", 65,
         [](Scene& scene) {
           mixed("fp8_block_ue8m0", "fp8_block", "layers.0.*")(scene);
           scene.edit("config.json", "\"quant_algo\": \"MIXED_PRECISION\"",
                      "\"quant_algo\": \"FP8_PB_WO\"");
           return scene.run();
         }),
  };
}

}  // namespace fathom::e2e
