// A system that gives no threads: every command that starts some says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "fathom/base/str_cat.h"
#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Each thread would need a stack of 64 TiB. Unlike a limit of processes, that binds root too.
void refuse_threads() {
  rlimit limit{};
  if (getrlimit(RLIMIT_STACK, &limit) != 0) _exit(126);
  limit.rlim_cur = rlim_t{1} << 46;
  if (setrlimit(RLIMIT_STACK, &limit) != 0) _exit(126);
}

struct Run {
  const char* name;
  std::vector<std::string> args;
};

class WithoutThreads : public testing::TestWithParam<Run> {};

TEST_P(WithoutThreads, SaysWhatTheSystemRefused) {
  const TempFolder folder;
  std::vector<std::string> args = {"--threads", "2"};
  for (const std::string& arg : GetParam().args)
    args.push_back(arg == "OUT" ? (folder / "out").string() : arg);

  const ProgramResult r = run_fathom(args, "x", refuse_threads);

  EXPECT_EQ(r.exit_code, 78) << r.err;
  EXPECT_THAT(r.err, AllOf(HasSubstr("cannot start "), HasSubstr("thread"), HasSubstr("ulimit -u"),
                           Not(HasSubstr(".cc:"))));
}

const std::string kMicro = FATHOM_SOURCE_DIR "/tests/golden/micro-v3";

INSTANTIATE_TEST_SUITE_P(
    Commands,
    WithoutThreads,
    testing::Values(Run{"run", {"run", kMicro, "-p", "a", "-n", "1"}},
                    Run{"chat", {"chat", kMicro}},
                    Run{"doctor", {"doctor"}},
                    Run{"eval", {"eval", kMicro, "--ppl", FATHOM_SOURCE_DIR "/README.md"}},
                    Run{"trace", {"trace", kMicro, "-p", "a", "--out-dir", "OUT"}},
                    Run{"bench_model", {"bench", "model", kMicro, "-p", "1", "-n", "1"}},
                    Run{"bench_kernel", {"bench", "kernel", "--kernels", "topk_softmax"}},
                    Run{"bench_kernel_in_process",
                        {"bench", "kernel", "--kernels", "topk_softmax", "--in-process"}}
#ifdef FATHOM_WITH_SERVER
                    ,
                    Run{"serve", {"serve", kMicro, "--port", "0"}}
#endif
                    ),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace fathom::e2e
