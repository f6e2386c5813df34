// The folder: what is missing in it, what is there twice, what is no regular file.
#include <sys/stat.h>

#include "tests/e2e/bad_input.h"

namespace fathom::e2e {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

void link_or_abort(const std::string& target, const fs::path& link) {
  std::error_code failed;
  fs::create_symlink(target, link, failed);
  if (failed) std::abort();
}

// Splits the weights in two shards, all tensors of layer 2 in the second, without an index.
void split(const Scene& scene) {
  LooseSafetensors first = scene.weights();
  LooseSafetensors second = first;
  const auto in_second = [](const LooseTensor& t) {
    return t.name.find("layers.2.") != t.name.npos;
  };
  std::erase_if(first.tensors, in_second);
  std::erase_if(second.tensors, [&](const LooseTensor& t) { return !in_second(t); });
  first.write_as(scene.file(kFirst), first.header());
  second.write_as(scene.file(kSecond), second.header());
  fs::remove(scene.file(kSingle));
}

void put_index(const Scene& scene, const std::string& second) {
  scene.put(kIndex, "{\"metadata\": {}, \"weight_map\": {\"model.norm.weight\": \"" +
                        std::string(kFirst) + "\", \"model.layers.2.mlp.gate.weight\": \"" +
                        second + "\"}}");
}

// Two shards and an index with this text.
auto indexed(const char* text) {
  return [text](Scene& scene) {
    split(scene);
    scene.put(kIndex, text);
    return scene.run();
  };
}

// Two shards, the second under the name that the index gives it.
auto second_named(const char* name) {
  return [name](Scene& scene) {
    split(scene);
    put_index(scene, name);
    return scene.run();
  };
}

// A file of the model replaced by something that `make` puts there.
auto replaced(const char* name, void (*make)(const fs::path&), const ProcessLimits& limits = {}) {
  return [name, make, limits](Scene& scene) {
    fs::remove(scene.file(name));
    make(scene.file(name));
    return scene.run(limits);
  };
}

void make_directory(const fs::path& path) {
  fs::create_directory(path);
}

void make_pipe(const fs::path& path) {
  if (mkfifo(path.c_str(), 0600) != 0) std::abort();
}

void make_loop(const fs::path& path) {
  link_or_abort("loop", path);
  link_or_abort(path.filename().string(), path.parent_path() / "loop");
}

void make_dangling(const fs::path& path) {
  link_or_abort("../blobs/0123", path);
}

void make_unreadable(const fs::path& path) {
  std::ofstream(path) << "{}";
  fs::permissions(path, fs::perms::none);
}

constexpr const char* kPointer =
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";

// A file of the model that holds another text.
auto holding(const char* name, std::string text) {
  return [name, text](Scene& scene) {
    scene.put(name, text);
    return scene.run();
  };
}

std::vector<BadCase> files_of_another_kind() {
  using std::string_literals::operator""s;
  return {
      {"Git LFS pointer in place of the weights", 65, holding(kSingle, kPointer)},
      {"Git LFS pointer in place of tokenizer.json", 65, holding("tokenizer.json", kPointer)},
      {"page of HTML in place of the weights", 65,
       holding(kSingle, "<!DOCTYPE html>\n<html><body>Not found</body></html>")},
      {"page of HTML in place of config.json", 65,
       holding("config.json", "<html><body>Sign in</body></html>")},
      {"ZIP file of PyTorch named model.safetensors", 65,
       holding(kSingle, "PK\x03\x04\x00\x00\x08\x08\x00\x00"s + std::string(100, 'x'))},
      {"pickle file named model.safetensors", 65,
       holding(kSingle, "\x80\x02\x8A\x0Al\xFC"s + std::string(100, 'x'))},
      {"compressed tokenizer.json", 65, holding("tokenizer.json", "\x1F\x8B\x08\x00"s)},
      {"GGUF file as the model", 78,
       [](Scene& scene) {
         const auto file = scene.beside("weights.gguf");
         std::ofstream(file, std::ios::binary)
             << "GGUF\x03\x00\x00\x00"s << std::string(8, '\0') << "\x01"s << std::string(7, '\0')
             << "\x14"s << std::string(7, '\0') << "general.architecture\x08\x00\x00\x00"s
             << "\x09"s << std::string(7, '\0') << "deepseek2";
         return scene.fathom({"run", file.string(), "-p", "x"});
       }},
      {"folder with a GGUF file alone", 78,
       [](Scene& scene) {
         fs::remove_all(scene.model());
         fs::create_directory(scene.model());
         scene.put("model.gguf", "GGUF");
         return scene.run();
       }},
      {"folder that is no model", 65,
       [](Scene& scene) {
         return scene.fathom({"run", scene.folder().string(), "-p", "x"});
       }},
  };
}

std::vector<BadCase> bad_files() {
  return {
      {"directory in place of the weights", 65, replaced(kSingle, make_directory)},
      {"directory in place of config.json", 65, replaced("config.json", make_directory)},
      {"directory in place of tokenizer.json", 65, replaced("tokenizer.json", make_directory)},
      {"pipe in place of the weights", 65, replaced(kSingle, make_pipe)},
      {"pipe in place of config.json", 65, replaced("config.json", make_pipe)},
      {"links in a circle in place of the weights", 65, replaced(kSingle, make_loop)},
      {"links in a circle in place of generation_config.json", 65,
       replaced("generation_config.json", make_loop)},
      {"link to a file that is gone, for the weights", 65, replaced(kSingle, make_dangling)},
      {"link to a file that is gone, for tokenizer_config.json", 65,
       replaced("tokenizer_config.json", make_dangling)},
      {"unreadable weights", 74, replaced(kSingle, make_unreadable, {.no_privileges = true})},
      {"unreadable config.json", 74,
       replaced("config.json", make_unreadable, {.no_privileges = true})},
      {"unreadable folder", 74,
       [](Scene& scene) {
         fs::permissions(scene.model(), fs::perms::none);
         ProgramResult r = scene.run({.no_privileges = true});
         fs::permissions(scene.model(), fs::perms::owner_all);
         return r;
       }},
      {"model that is a file", 65,
       [](Scene& scene) {
         return scene.fathom({"run", scene.file("config.json").string(), "-p", "x"});
       }},
      {"model that is a circle of links", 65,
       [](Scene& scene) {
         fs::remove_all(scene.model());
         make_loop(scene.model());
         return scene.run();
       }},
      {"model folder that is empty", 65,
       [](Scene& scene) {
         fs::remove_all(scene.model());
         fs::create_directory(scene.model());
         return scene.fathom({"inspect", scene.model().string()});
       }},
  };
}

std::vector<BadCase> bad_indexes() {
  return {
      {"index that names a missing shard", 65, second_named("model-00003-of-00002.safetensors")},
      {"index that leaves the folder", 65, second_named("../model.safetensors")},
      {"index that names a pickle file", 65, second_named("pytorch_model.bin")},
      {"index of zero bytes", 65, indexed("")},
      {"index that is no JSON", 65, indexed("{\"weight_map\": {")},
      {"index with an empty weight_map", 65, indexed("{\"weight_map\": {}}")},
      {"index without a weight_map", 65, indexed("{\"metadata\": {}}")},
      {"index with a number for a shard", 65, indexed("{\"weight_map\": {\"lm_head.weight\": 1}}")},
      {"index with a tensor twice", 65,
       indexed("{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\", \"a\": "
               "\"model-00002-of-00002.safetensors\"}}")},
      {"index that is a directory", 65,
       [](Scene& scene) {
         split(scene);
         fs::create_directory(scene.file(kIndex));
         return scene.run();
       }},
      {"shard that is a directory", 65,
       [](Scene& scene) {
         split(scene);
         put_index(scene, kSecond);
         fs::remove(scene.file(kSecond));
         fs::create_directory(scene.file(kSecond));
         return scene.run();
       }},
      {"shards without an index", 65,
       [](Scene& scene) {
         split(scene);
         return scene.run();
       }},
      {"tensor in two shards", 65,
       [](Scene& scene) {
         split(scene);
         put_index(scene, kSecond);
         fs::copy(scene.file(kFirst), scene.file(kSecond), fs::copy_options::overwrite_existing);
         return scene.run();
       }},
      {"pickle files alone", 78,
       [](Scene& scene) {
         fs::rename(scene.file(kSingle), scene.file("pytorch_model.bin"));
         return scene.run();
       }},
      {"file that another write left unfinished", 65,
       [](Scene& scene) {
         scene.put("model-00009-of-00009.safetensors.partial", "x");
         return scene.run();
       }},
      {"journal without an end", 65,
       [](Scene& scene) {
         std::string journal = scene.quantize_with_journal();
         journal.erase(journal.find("{\"finished\""));
         scene.put(kJournal, journal);
         return scene.run();
       }},
      {"interrupted quantize that has written the weights alone", 65,
       [](Scene& scene) {
         std::string journal = scene.quantize_with_journal();
         journal.erase(journal.find("{\"file\":\"config.json\""));
         scene.put(kJournal, journal);
         fs::remove(scene.file("tokenizer.json"));
         fs::remove(scene.file("config.json"));
         return scene.run();
       }},
      {"tokenizer of an interrupted quantize", 65,
       [](Scene& scene) {
         fs::rename(scene.file(kSingle), scene.file("model.safetensors.partial"));
         fs::remove(scene.file("tokenizer.json"));
         return scene.fathom({"tokenize", scene.model().string(), "-p", "x"});
       }},
      {"byte of the weights that is not what their journal records", 65,
       [](Scene& scene) {
         scene.quantize_with_journal();
         std::string weights = read_all(scene.file(kSingle));
         weights[weights.size() / 2] ^= 1;
         scene.put(kSingle, weights);
         return scene.run();
       }},
      {"weights of another length than their journal records", 65,
       [](Scene& scene) {
         scene.quantize_with_journal();
         std::string journal = read_all(scene.file(kJournal));
         const size_t at = journal.find("\"bytes\":") + 8;
         scene.put(kJournal, journal.replace(at, 1, "9"));
         return scene.run();
       }},
      {"shard that the journal does not record", 65,
       [](Scene& scene) {
         scene.quantize_with_journal();
         LooseSafetensors more = scene.weights();
         more.tensors.resize(1);
         more.tensors[0].name = "another";
         more.write_as(scene.file("model-extra.safetensors"), more.header());
         scene.put(kIndex,
                   "{\"weight_map\": {\"another\": \"model-extra.safetensors\", "
                   "\"model.norm.weight\": \"model.safetensors\"}}");
         return scene.run();
       }},
      {"journal of zero bytes", 65,
       [](Scene& scene) {
         scene.put(kJournal, "");
         return scene.run();
       }},
  };
}

}  // namespace

std::vector<BadCase> bad_shard_cases() {
  std::vector<BadCase> cases = bad_files();
  for (auto more : {files_of_another_kind, bad_indexes}) {
    for (BadCase& c : more())
      cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace fathom::e2e
