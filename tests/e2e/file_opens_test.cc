// Each file of a checkpoint is opened once, whatever the command.
#include <algorithm>
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <sys/inotify.h>

#include "tests/e2e/bad_input.h"

namespace fathom::e2e {
namespace {

using Counts = std::map<std::string, int>;  // file name to opens

/// Counts, for as long as it lives, how often the files of a folder are opened.
class OpenCounter {
 public:
  explicit OpenCounter(const std::filesystem::path& folder)
      : fd_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    if (fd_ >= 0 && inotify_add_watch(fd_, folder.c_str(), IN_OPEN) < 0) {
      close(fd_);
      fd_ = -1;
    }
  }

  ~OpenCounter() {
    if (fd_ >= 0) close(fd_);
  }

  bool works() const { return fd_ >= 0; }

  Counts take() {
    Counts counts;
    alignas(inotify_event) char buffer[1 << 16];
    for (;;) {
      const ssize_t bytes = read(fd_, buffer, sizeof buffer);
      if (bytes <= 0) return counts;
      for (ssize_t at = 0; at < bytes;) {
        const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
        if (event->len > 0 && (event->mask & IN_ISDIR) == 0) ++counts[event->name];
        at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      }
    }
  }

 private:
  int fd_;
};

const std::vector<std::string> kModelFiles = {"config.json", "generation_config.json",
                                              "fathom-journal.jsonl", "hf_quant_config.json",
                                              "model.safetensors"};

Counts once(std::vector<std::string> names) {
  Counts counts;
  for (const std::string& name : names)
    counts[name] = 1;
  return counts;
}

std::vector<std::string> with(std::vector<std::string> names,
                              const std::vector<std::string>& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

TEST(FileOpens, EachFileOfACheckpointIsOpenedOnce) {
  const Scene scene;
  scene.quantize_with_journal();  // has an hf_quant_config.json
  const std::string model = scene.model().string();
  const std::string ids = scene.beside("ids.json").string();
  std::ofstream(ids) << "{\"prompts\": [[1, 2, 3]]}";
  const std::vector<std::string> texts = {"tokenizer.json", "tokenizer_config.json"};
  const std::vector<std::string> all = with(kModelFiles, texts);
  const std::vector<std::string> chat = with(texts, {"config.json"});

  const struct {
    std::vector<std::string> args;
    std::vector<std::string> files;
  } commands[] = {
      {{"run", model, "-p", "x", "-n", "2"}, all},
      {{"run", model, "-p", "x", "-n", "2", "--dtype", "f32"}, all},
      {{"chat", model}, all},
      {{"inspect", model}, kModelFiles},
      {{"inspect", model, "--explain", "q_b_proj"}, kModelFiles},
      {{"eval", model, "--ids", ids, "--logits-out", ids + ".out"}, kModelFiles},
      {{"eval", model, "--ppl", ids}, all},
      {{"bench", "model", model, "-p", "4", "-n", "2", "-r", "1"}, kModelFiles},
      {{"trace", "--dry", model}, kModelFiles},
      {{"trace", "--dry", model, "--format", "int8"}, {"config.json"}},
      {{"trace", model, "-p", "x", "--gen", "1", "--out-dir", ids + ".trace"}, all},
      {{"tokenize", model, "-p", "x"}, texts},
  };

  OpenCounter opens(scene.model());
  if (!opens.works()) GTEST_SKIP() << "no inotify here: " << strerror(errno);

  for (const auto& [args, files] : commands) {
    const ProgramResult r = scene.fathom(args);

    EXPECT_EQ(r.exit_code, 0) << testing::PrintToString(args) << r.err;
    EXPECT_EQ(opens.take(), once(files)) << testing::PrintToString(args);
  }
}

// A server plans before it listens, and loads behind that, of one source.
TEST(FileOpens, AServerOpensEachFileOnce) {
  const Scene scene;
  scene.quantize_with_journal();
  OpenCounter opens(scene.model());
  if (!opens.works()) GTEST_SKIP() << "no inotify here: " << strerror(errno);
  const auto end_when_ready = [] {
    const pid_t program = getpid();
    if (fork() != 0) return;
    for (int tries = 0; tries < 30'000 && getppid() == program; ++tries) {
      if (read_all("/proc/self/fd/1").starts_with("ready ")) {
        kill(program, SIGTERM);
        break;
      }
      usleep(2'000);
    }
    _exit(0);
  };

  const ProgramResult r = run_fathom(
      {"serve", scene.model().string(), "--port", "0", "--threads", "1"}, {}, end_when_ready);

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(opens.take(), once(with(kModelFiles, {"tokenizer.json", "tokenizer_config.json"})));
}

// The template of chats stands in a file of the tokenizer, the family in one of the model.
TEST(FileOpens, ChatTemplateComesFromFilesThatAreOpenAnyway) {
  const Scene scene;
  const std::string chat = scene.beside("chat.json").string();
  std::ofstream(chat) << R"([{"role": "user", "content": "hello"}])";
  OpenCounter opens(scene.model());
  if (!opens.works()) GTEST_SKIP() << "no inotify here: " << strerror(errno);

  const ProgramResult tokenize =
      scene.fathom({"tokenize", scene.model().string(), "--chat", chat, "--ids"});
  const Counts found = opens.take();

  EXPECT_EQ(tokenize.exit_code, 0) << tokenize.err;
  EXPECT_EQ(found, once({"config.json", "tokenizer.json", "tokenizer_config.json"}));
}

// Whether reference outputs are compared in float32 depends on what the model declares.
TEST(FileOpens, ComparisonWithVectorsReadsTheDeclarationOnce) {
  const Scene scene;
  OpenCounter opens(scene.model());
  if (!opens.works()) GTEST_SKIP() << "no inotify here: " << strerror(errno);

  const ProgramResult r =
      scene.fathom({"eval", scene.model().string(), "--vectors",
                    FATHOM_SOURCE_DIR "/tests/golden/micro-v3/golden.safetensors"});
  const Counts found = opens.take();

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(found, once({"config.json", "generation_config.json", "model.safetensors"}));
}

}  // namespace
}  // namespace fathom::e2e
