// tokenizer.json, tokenizer_config.json, and a vocabulary that is not the model's.
#include "tests/e2e/bad_input.h"

namespace fathom::e2e {
namespace {

constexpr const char* kFile = "tokenizer.json";

auto edited(const char* from, const char* to) {
  return [from, to](Scene& scene) {
    scene.edit(kFile, from, to);
    return scene.run();
  };
}

auto replaced(const char* name, const char* content) {
  return [name, content](Scene& scene) {
    scene.put(name, content);
    return scene.run();
  };
}

}  // namespace

std::vector<BadCase> bad_tokenizer_cases() {
  return {
      {"pre-tokenizer pattern that fathom does not know", 78,
       edited("\\\\p{N}{1,3}", "\\\\p{N}{1,4}")},
      {"pre-tokenizer of another kind", 78,
       edited("\"type\": \"ByteLevel\"", "\"type\": \"Metaspace\"")},
      {"vocabulary of another kind", 78, edited("\"type\": \"BPE\"", "\"type\": \"Unigram\"")},
      {"two tokens with one id", 65, edited("\"id\": 1,", "\"id\": 0,")},
      {"tokenizer.json missing", 65,
       [](Scene& scene) {
         std::filesystem::remove(scene.file(kFile));
         return scene.run();
       }},
      {"tokenizer.json of zero bytes", 65, replaced(kFile, "")},
      {"tokenizer.json that is no JSON", 65, replaced(kFile, "{\"model\": }")},
      {"tokenizer.json without a model", 65, replaced(kFile, "{\"version\": \"1.0\"}")},
      {"tokenizer_config.json missing", 0,
       [](Scene& scene) {
         std::filesystem::remove(scene.file("tokenizer_config.json"));
         return scene.run();
       },
       true},
      {"tokenizer_config.json of zero bytes", 65, replaced("tokenizer_config.json", "")},
      {"tokenizer_config.json that is an array", 65, replaced("tokenizer_config.json", "[]")},
      {"first token that the vocabulary does not hold", 65,
       replaced("tokenizer_config.json", "{\"bos_token\": \"<s>\"}")},
      {"vocabulary of a larger model", 65,
       [](Scene& scene) {
         const auto small = scene.beside("small");
         const ProgramResult made = scene.fathom(
             {"synth", small.string(), "--layers", "1", "--hidden", "64", "--experts", "8", "-q"});
         if (made.exit_code != 0) return made;
         std::filesystem::copy(scene.file(kFile), small / kFile,
                               std::filesystem::copy_options::overwrite_existing);
         std::filesystem::copy(scene.file("tokenizer_config.json"), small / "tokenizer_config.json",
                               std::filesystem::copy_options::overwrite_existing);
         return scene.fathom({"run", small.string(), "-p", "x", "--max-tokens", "2"});
       }},
  };
}

}  // namespace fathom::e2e
