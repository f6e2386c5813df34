// What an installation has, and that it works from any folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;

TEST(Install, HasProgramPagesCompletionsModelsAndLicence) {
  const TempFolder folder;

  const ProgramResult r =
      run_program(FATHOM_CMAKE, {"--install", FATHOM_BUILD_DIR, "--prefix", folder.str()});

  ASSERT_EQ(r.exit_code, 0) << r.err;
  for (const char* file :
       {"bin/fathom", "share/man/man1/fathom.1", "share/man/man1/fathom-run.1",
        "share/man/man1/fathom-bench-kernel.1", "share/bash-completion/completions/fathom",
        "share/zsh/site-functions/_fathom", "share/fish/vendor_completions.d/fathom.fish",
        "share/doc/fathom/copyright", "share/fathom/models/tiny-v3-nvfp4/model.safetensors",
        "share/fathom/models/tiny-v4-nvfp4/config.json"})
    EXPECT_GT(std::filesystem::file_size(folder / file), 100u) << file;
  const std::string run = " run tiny-v3-nvfp4 -p Once --temperature 0 -n 2 -q";
  const ProgramResult installed = run_shell("cd / && " + (folder / "bin/fathom").string() + run);
  EXPECT_EQ(installed.exit_code, 0) << installed.err;
  EXPECT_EQ(installed.out, run_shell("cd / && fathom" + run).out);
  // A link to it, as people put into ~/bin, finds its models too.
  std::filesystem::create_symlink(folder / "bin/fathom", folder / "link");
  EXPECT_EQ(run_shell("cd / && " + (folder / "link").string() + run).out, installed.out);
}

TEST(Install, PackageOfDebianHasTheSame) {
  if (run_shell("command -v dpkg-deb dpkg-shlibdeps").exit_code != 0) {
    GTEST_SKIP() << "needs dpkg-deb and dpkg-shlibdeps";
  }
  const TempFolder folder;

  const ProgramResult made =
      run_program(FATHOM_CPACK, {"--config", std::string(FATHOM_BUILD_DIR) + "/CPackConfig.cmake",
                                 "-G", "DEB", "-B", folder.str()});

  ASSERT_EQ(made.exit_code, 0) << made.out << made.err;
  const ProgramResult files = run_shell("dpkg-deb -c " + folder.str() + "/fathom_*.deb");
  for (const char* file : {"./usr/bin/fathom\n", "./usr/share/man/man1/fathom-run.1\n",
                           "./usr/share/bash-completion/completions/fathom\n",
                           "./usr/share/fathom/models/tiny-v3-nvfp4/config.json\n",
                           "./usr/share/doc/fathom/copyright\n"})
    EXPECT_THAT(files.out, HasSubstr(file));
  const ProgramResult facts = run_shell("dpkg-deb -I " + folder.str() + "/fathom_*.deb");
  EXPECT_THAT(facts.out, HasSubstr("Package: fathom\n"));
  EXPECT_THAT(facts.out, testing::ContainsRegex("Depends: .*libc6"));
}

}  // namespace
}  // namespace fathom::e2e
