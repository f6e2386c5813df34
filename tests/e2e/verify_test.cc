// `fathom verify`: what it reads, what it finds, what it ends with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/os/sha256.h"
#include "fathom/text/json.h"
#include "tests/e2e/bad_input.h"

namespace fathom::e2e {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kNorm = "model.norm.weight";

class Verify : public testing::Test {
 protected:
  ProgramResult verify(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args{"verify", scene_.model().string()};
    args.insert(args.end(), more.begin(), more.end());
    return scene_.fathom(args);
  }

  void flip_a_bit_of(const char* name) const {
    std::string bytes = read_all(scene_.file(name));
    bytes[bytes.size() / 2] ^= 1;
    scene_.put(name, bytes);
  }

  void expect_fault(const std::string& says) const {
    const ProgramResult r = verify();

    EXPECT_EQ(r.exit_code, 65) << r.out << r.err;
    EXPECT_THAT(r.out, HasSubstr("fault: "));
    EXPECT_THAT(r.out, HasSubstr(says));
    EXPECT_THAT(r.out, HasSubstr("FAILED: "));
  }

  Scene scene_;
};

TEST_F(Verify, ShippedModelsAreAsTheirJournalsSay) {
  for (const char* name : {"tiny-v3-nvfp4", "tiny-v4-nvfp4"}) {
    const ProgramResult r =
        run_fathom({"verify", std::string(FATHOM_SOURCE_DIR) + "/models/" + name});

    EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
    EXPECT_THAT(r.out, HasSubstr("| model.safetensors "));
    EXPECT_THAT(r.out, HasSubstr("matches, by fathom-journal.jsonl"));
    EXPECT_THAT(r.out, testing::EndsWith("\nok\n"));
    EXPECT_EQ(r.err, "");
  }
}

TEST_F(Verify, ModelWithoutRecordedHashesIsReadAllTheSame) {
  const ProgramResult r = verify();

  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  EXPECT_THAT(r.out, HasSubstr("not recorded"));
  EXPECT_THAT(r.out, HasSubstr("the numbers of 91 tensors looked at"));
}

TEST_F(Verify, FlippedBitOfTheWeightsIsFoundByItsHash) {
  scene_.quantize_with_journal();
  const std::string sound = to_hex(sha256(read_all(scene_.file(kWeights))));
  flip_a_bit_of(kWeights);

  expect_fault("model.safetensors: is not the file that fathom-journal.jsonl records");
  EXPECT_THAT(verify().out, HasSubstr("expected " + sound));
}

TEST_F(Verify, FlippedBitOfASmallFileIsFoundToo) {
  scene_.quantize_with_journal();
  flip_a_bit_of("tokenizer_config.json");

  expect_fault("tokenizer_config.json: is not the file that fathom-journal.jsonl records");
}

TEST_F(Verify, FileThatTheJournalRecordsMustBeThere) {
  scene_.quantize_with_journal();
  fs::remove(scene_.file("generation_config.json"));

  expect_fault("generation_config.json: No such file or directory");
}

TEST_F(Verify, LinksIntoACacheAreHeldAgainstTheNamesOfTheirBlobs) {
  const auto blobs = scene_.beside("blobs");
  fs::create_directory(blobs);
  const std::string digest = to_hex(sha256(read_all(scene_.file(kWeights))));
  fs::rename(scene_.file(kWeights), blobs / digest);
  fs::create_symlink("../blobs/" + digest, scene_.file(kWeights));

  const ProgramResult sound = verify();
  std::string bytes = read_all(blobs / digest);
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(blobs / digest, std::ios::binary) << bytes;

  EXPECT_EQ(sound.exit_code, 0) << sound.out;
  EXPECT_THAT(sound.out, HasSubstr("matches, by the Hugging Face cache"));
  expect_fault("is not the file that the Hugging Face cache records");
}

TEST_F(Verify, NumbersThatAreNotFiniteAreNamed) {
  LooseSafetensors weights = scene_.weights();
  weights[kNorm].data.replace(6, 2, "\xC0\x7F");
  weights["model.layers.1.mlp.experts.3.up_proj.weight"].data.replace(0, 2, "\x80\xFF");
  weights.write();

  expect_fault("tensor \"model.norm.weight\": element 3 at byte ");
  expect_fault("tensor \"model.layers.1.mlp.experts.3.up_proj.weight\": element 0 at byte ");
  expect_fault("FAILED: 2 faults");
}

TEST_F(Verify, ScalesThatAreNegativeAreNamed) {
  scene_.quantize("nvfp4");
  LooseSafetensors weights = scene_.weights();
  weights["model.layers.1.mlp.experts.3.up_proj.weight_scale"].data[5] = '\xB8';
  weights.write();

  expect_fault("up_proj.weight_scale\": scale 5 at byte ");
}

TEST_F(Verify, IndexThatContradictsTheShardsIsAFault) {
  scene_.put("model.safetensors.index.json",
             "{\"weight_map\": {\"model.norm.weight\": \"model.safetensors\", \"gone.weight\": "
             "\"model.safetensors\"}}");

  expect_fault("names 1 tensors that no shard holds, such as \"gone.weight\"");
}

TEST_F(Verify, WhatLoadingWouldRefuseIsAFault) {
  LooseSafetensors weights = scene_.weights();
  std::erase_if(weights.tensors, [](const LooseTensor& t) { return t.name == kNorm; });
  weights.write();

  expect_fault("1 tensor is missing: model.norm.weight");
}

TEST_F(Verify, BrokenHeaderDoesNotHideWhatElseIsWrong) {
  scene_.quantize_with_journal();
  fs::resize_file(scene_.file(kWeights), 1000);
  flip_a_bit_of("tokenizer.json");

  expect_fault("model.safetensors: header length at byte 0 is");
  expect_fault("tokenizer.json: is not the file that fathom-journal.jsonl records");
}

TEST_F(Verify, VerdictIsOneDocumentOfJson) {
  scene_.quantize_with_journal();
  const ProgramResult sound = verify({"--json"});
  flip_a_bit_of(kWeights);
  const ProgramResult broken = verify({"--json"});

  const Result<Json> first = parse_json(sound.out, {}, "verify");
  const Result<Json> second = parse_json(broken.out, {}, "verify");
  ASSERT_TRUE(first.ok() && second.ok()) << sound.out << broken.out;
  EXPECT_EQ(sound.exit_code, 0);
  EXPECT_EQ(first->find("schema")->as_string(), "fathom.verify/1");
  EXPECT_TRUE(first->find("ok")->as_bool());
  EXPECT_TRUE(first->find("faults")->items().empty());
  EXPECT_EQ(broken.exit_code, 65);
  EXPECT_FALSE(second->find("ok")->as_bool());
  EXPECT_EQ(second->find("faults")->items().size(), 1u) << broken.out;
  for (const Json& file : second->find("files")->items()) {
    const bool weights = file.find("name")->as_string() == kWeights;
    EXPECT_EQ(file.find("sha256")->as_string(), weights ? "differs" : "matches");
  }
}

TEST_F(Verify, FolderThatIsNoModelIsRefused) {
  EXPECT_EQ(scene_.fathom({"verify", "/nowhere/model"}).exit_code, 65);
  scene_.put("model-1.safetensors.partial", "");
  EXPECT_EQ(verify().exit_code, 65);
}

}  // namespace
}  // namespace fathom::e2e
