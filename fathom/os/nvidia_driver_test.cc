#include "fathom/os/nvidia_driver.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

void put(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

TEST(NvidiaDriver, MachineWithoutOneHasNone) {
  const TempDir dir;

  EXPECT_FALSE(nvidia_driver(dir.file("nvidia")).has_value());
}

TEST(NvidiaDriver, VersionAndCardsAreRead) {
  const TempDir dir;
  put(dir.file("version"),
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  "
      "(dvs@host)  Thu Jan 23 22:50:36 UTC 2025\nGCC version:  gcc version 12.2.0\n");
  for (const char* card : {"0000:18:00.0", "0000:2a:00.0"}) {
    std::filesystem::create_directories(dir.file("gpus/") + card);
    put(dir.file("gpus/") + card + "/information",
        "Model: \t\t NVIDIA H200\nIRQ:   \t\t 18\nGPU UUID: \t GPU-0\n");
  }

  const auto driver = nvidia_driver(dir.path());

  ASSERT_TRUE(driver.has_value());
  EXPECT_EQ(driver->version, "570.86.15");
  EXPECT_EQ(driver->gpus, (std::vector<std::string>{"NVIDIA H200", "NVIDIA H200"}));
}

TEST(NvidiaDriver, OlderSpellingIsReadToo) {
  const TempDir dir;
  put(dir.file("version"),
      "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n");

  EXPECT_EQ(nvidia_driver(dir.path())->version, "535.183.01");
  EXPECT_TRUE(nvidia_driver(dir.path())->gpus.empty());
}

TEST(NvidiaDriver, OtherTextIsADriverWithoutAVersion) {
  const TempDir dir;
  put(dir.file("version"), "something else\n");

  ASSERT_TRUE(nvidia_driver(dir.path()).has_value());
  EXPECT_EQ(nvidia_driver(dir.path())->version, "");
}

}  // namespace
}  // namespace fathom
