// Prompts, lists of ids and other small inputs of a command.
#include "tests/e2e/bad_input.h"

namespace fathom::e2e {
namespace {

// fathom run with this prompt.
auto prompted(std::vector<std::string> args, std::string input = {}) {
  return [=](Scene& scene) {
    std::vector<std::string> all{"run", scene.model().string()};
    all.insert(all.end(), args.begin(), args.end());
    return scene.fathom(all, input);
  };
}

// fathom eval --ids with this text in the file.
auto ids(std::string text) {
  return [text](Scene& scene) {
    const auto file = scene.beside("ids.json");
    std::ofstream(file) << text;
    ProgramResult r = scene.fathom({"eval", scene.model().string(), "--ids", file.string(),
                                    "--logits-out", scene.beside("logits").string()});
    if (std::filesystem::exists(scene.beside("logits"))) r.exit_code = -1;  // half an output
    return r;
  };
}

// fathom eval --vectors with the reference outputs of the fixture, changed.
auto vectors(void (*change)(LooseSafetensors&)) {
  return [change](Scene& scene) {
    LooseSafetensors golden(FATHOM_SOURCE_DIR "/tests/golden/micro-v3/golden.safetensors");
    change(golden);
    const auto file = scene.beside("golden.safetensors");
    golden.write_as(file, golden.header());
    return scene.fathom({"eval", scene.model().string(), "--vectors", file.string()});
  };
}

void fill(LooseTensor& tensor, const std::string& number) {
  for (size_t at = 0; at < tensor.data.size(); at += number.size())
    tensor.data.replace(at, number.size(), number);
}

// fathom run with flags from a file.
auto flags_from(const char* path) {
  return prompted({"-p", "x", "--max-tokens", "1", "--config", path});
}

auto flags(std::string text) {
  return [text](Scene& scene) {
    std::ofstream(scene.beside("flags.yaml")) << text;
    return prompted({"-p", "x", "--config", scene.beside("flags.yaml").string()})(scene);
  };
}

auto perplexity(std::string text) {
  return [text](Scene& scene) {
    const auto file = scene.beside("text");
    std::ofstream(file) << text;
    return scene.fathom({"eval", scene.model().string(), "--ppl", file.string()});
  };
}

auto bench(std::vector<std::string> args) {
  return [=](Scene& scene) {
    std::vector<std::string> all{"bench", "kernel"};
    all.insert(all.end(), args.begin(), args.end());
    return scene.fathom(all);
  };
}

std::string list_of(size_t count) {
  std::string text = "{\"prompts\": [[1";
  for (size_t i = 1; i < count; ++i)
    text += ", 1";
  return text + "]]}";
}

}  // namespace

std::vector<BadCase> bad_prompt_cases() {
  return {
      {"empty prompt", 64, prompted({"-p", ""})},
      {"empty prompt from standard input", 64, prompted({"-f", "-"})},
      {"prompt longer than the context", 64, prompted({"-f", "-"}, std::string(20'000, 'x'))},
      {"prompt and answer longer than the context", 64,
       prompted({"-f", "-", "--max-tokens", "512"}, "x")},
      {"prompt of 1 MiB of one letter", 64, prompted({"-f", "-"}, std::string(1 << 20, 'a'))},
      {"prompt of 1 MiB of spaces", 64, prompted({"-f", "-"}, std::string(1 << 20, ' '))},
      {"prompt beyond the limit of standard input", 64,
       prompted({"-f", "-"}, std::string(65 << 20, 'a'))},
      {"prompt file that is not there", 65, prompted({"-f", "/nowhere/prompt"})},
      {"prompt file that is a folder", 65, prompted({"-f", "/"})},
      {"prompt from a folder as standard input", 74,
       [](Scene& scene) {
         return scene.fathom({"run", scene.model().string(), "-f", "-"}, {}, {.input = "/"});
       }},
      {"conversation typed from a folder as standard input", 74,
       [](Scene& scene) {
         return scene.fathom({"chat", scene.model().string(), "--threads", "1"}, {},
                             {.input = "/"});
       }},
      {"line of a conversation beyond the limit", 64,
       [](Scene& scene) {
         return scene.fathom({"chat", scene.model().string(), "--threads", "1"},
                             std::string(65 << 20, 'a'));
       }},
      {"answer longer than the context", 64, prompted({"-p", "x", "--max-tokens", "100000"})},
      {"bias of a token outside the vocabulary", 64,
       prompted({"-p", "x", "--logit-bias", "4096=1"})},
      {"drafts by a layer that the model lacks", 78,
       prompted({"-p", "x", "--max-tokens", "2", "--speculative", "mtp"})},
      {"drafts by a layer that was left out", 78,
       [](Scene& scene) {
         scene.edit("config.json", "\"num_nextn_predict_layers\": 0",
                    "\"num_nextn_predict_layers\": 1");
         return prompted({"-p", "x", "--max-tokens", "2", "--speculative", "mtp"})(scene);
       }},
      {"trees of n-grams", 64,
       prompted(
           {"-p", "x", "--max-tokens", "2", "--speculative", "ngram", "--speculative-topk", "2"})},
      {"width of a chain", 64,
       prompted(
           {"-p", "x", "--max-tokens", "2", "--speculative", "ngram", "--speculative-width", "8"})},
      {"id beyond the vocabulary", 65, ids("{\"prompts\": [[1, 2], [3, 4096]]}")},
      {"negative id", 65, ids("{\"prompts\": [[-1]]}")},
      {"id beyond 64 bits", 65, ids("{\"prompts\": [[18446744073709551616]]}")},
      {"id with a fraction", 65, ids("{\"prompts\": [[1.5]]}")},
      {"empty list of ids", 65, ids("{\"prompts\": [[]]}")},
      {"no lists of ids", 65, ids("{\"prompts\": []}")},
      {"ids that are no lists", 65, ids("{\"prompts\": [1, 2]}")},
      {"ids without prompts", 65, ids("[[1]]")},
      {"ids of zero bytes", 65, ids("")},
      {"duplicate key in the ids", 65, ids("{\"prompts\": [[1]], \"prompts\": [[2]]}")},
      {"ids longer than the context", 65, ids(list_of(600))},
      {"ids that are not there", 65,
       [](Scene& scene) {
         return scene.fathom({"eval", scene.model().string(), "--ids", scene.beside("x").string(),
                              "--logits-out", scene.beside("logits").string()});
       }},
      {"text of zero bytes for the perplexity", 65, perplexity("")},
      {"reference outputs that are no safetensors file", 65,
       [](Scene& scene) {
         const auto file = scene.beside("golden.safetensors");
         std::ofstream(file) << "not a tensor in sight";
         return scene.fathom({"eval", scene.model().string(), "--vectors", file.string()});
       }},
      {"reference outputs without prompts", 65,
       vectors([](LooseSafetensors& w) { w.tensors.resize(1); })},
      {"reference logits with three axes", 65,
       vectors([](LooseSafetensors& w) { w["p1.logits"].shape = "[7, 64, 64]"; })},
      {"reference logits of a wider vocabulary", 65, vectors([](LooseSafetensors& w) {
         w["p1.logits"].shape = "[7, 8192]";
         w["p1.logits"].data.resize(7 * 8192 * 4);
       })},
      {"fewer reference logits than their rows", 65, vectors([](LooseSafetensors& w) {
         w["p1.logits"].shape = "[6, 4096]";
         w["p1.logits"].data.resize(6 * 4096 * 4);
       })},
      {"reference choices of no columns", 65, vectors([](LooseSafetensors& w) {
         w["p1.top_ids"].shape = "[7, 0]";
         w["p1.top_ids"].data.clear();
       })},
      {"reference hidden states of another width", 65,
       vectors([](LooseSafetensors& w) { w["hidden.layer1"].shape = "[32, 128]"; })},
      {"reference experts of too few tokens", 65, vectors([](LooseSafetensors& w) {
         w["router.layer2.ids"].shape = "[63, 3]";
         w["router.layer2.ids"].data.resize(63 * 3 * 4);
       })},
      {"reference logits infinite", 65,
       vectors([](LooseSafetensors& w) { w["p1.logits"].data.replace(4 * 4095, 4, kInfinity); })},
      {"reference hidden states NaN", 65,
       vectors([](LooseSafetensors& w) { fill(w["hidden.layer1"], kNan); })},
      {"reference weights of experts NaN", 65,
       vectors([](LooseSafetensors& w) { fill(w["router.layer2.weights"], kNan); })},
      {"reference prompt with an id outside the vocabulary", 65, vectors([](LooseSafetensors& w) {
         w["p1.input_ids"].data.replace(8, 4, "\xFF\xFF\xFF\x7F");
       })},
      {"reference prompt of no tokens", 65, vectors([](LooseSafetensors& w) {
         w["p0.input_ids"].shape = "[0]";
         w["p0.input_ids"].data.clear();
       })},
      {"reference prompt in floats", 65,
       vectors([](LooseSafetensors& w) { w["p1.input_ids"].dtype = "F32"; })},
      {"token to decode outside the vocabulary", 64,
       [](Scene& scene) {
         return scene.fathom({"tokenize", scene.model().string(), "--decode", "1 4096"});
       }},
      {"token to decode that is no number", 64,
       [](Scene& scene) {
         return scene.fathom({"tokenize", scene.model().string(), "--decode", "1 x"});
       }},
      {"flags from a file that is not there", 65, flags_from("/nowhere/flags.yaml")},
      {"flags from a folder", 65, flags_from("/")},
      {"flags in a file that is no YAML", 65, flags("threads: [1")},
      {"flags with 100,000 open brackets", 65, flags(std::string(100'000, '['))},
      {"flags in another encoding", 65, flags("\xFF\xFEt")},
      {"flags that are no map", 65, flags("- threads")},
      {"flag with a list for a value", 65, flags("temperature: [1, 2]")},
      {"flag twice", 65, flags("seed: 1\nseed: 2")},
      {"flag that no command has", 64, flags("temprature: 1")},
      {"flag with a value out of range", 64, flags("threads: -1")},
      {"page size that does not divide the keys of a chunk", 64,
       prompted({"-p", "x", "--block-size", "3"})},
      {"benchmark of a suite that does not exist", 64, bench({"--suite", "x"})},
      {"benchmark of a phase that does not exist", 64, bench({"--phase", "xyz"})},
      {"benchmark of a filter that leaves nothing", 64, bench({"--filter", "zzzz"})},
      {"benchmark of sizes that no case has", 64,
       bench({"--suite", "decode", "--batch", "7,9", "--kv-len", "3"})},
      {"roofline of a device without a data sheet", 64,
       [](Scene& scene) {
         return scene.fathom({"roofline",
                              FATHOM_SOURCE_DIR "/tests/fuzz/corpus/bench_csv/four_rows",
                              "--device", "xx"});
       }},
      {"conversation that is no JSON", 65,
       [](Scene& scene) {
         const auto file = scene.beside("chat.json");
         std::ofstream(file) << "{\"messages\": [}";
         return scene.fathom({"tokenize", scene.model().string(), "--chat", file.string()});
       }},
      {"conversation with an unknown role", 65,
       [](Scene& scene) {
         const auto file = scene.beside("chat.json");
         std::ofstream(file) << "[{\"role\": \"wizard\", \"content\": \"x\"}]";
         return scene.fathom({"tokenize", scene.model().string(), "--chat", file.string()});
       }},
      {"conversation without messages", 65,
       [](Scene& scene) {
         const auto file = scene.beside("chat.json");
         std::ofstream(file) << "{\"tools\": []}";
         return scene.fathom({"tokenize", scene.model().string(), "--chat", file.string()});
       }},
  };
}

}  // namespace fathom::e2e
