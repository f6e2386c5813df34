#include "fathom/bench/suites/reference_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

using testing::HasSubstr;

constexpr int kOutOf = 60;

// The catalogue without the kernels of one reference name.
std::vector<KernelEntry> kernels_without(std::string_view name) {
  std::vector<KernelEntry> out;
  for (const KernelEntry& k : all_kernels())
    if (&k != find_kernel(name)) out.push_back(k);
  return out;
}

BenchRow row_of(std::string_view kernel, RowStatus status) {
  BenchRow row;
  row.kernel = std::string(kernel);
  row.status = status;
  row.passed = status == RowStatus::kWrong ? "false" : "true";
  return row;
}

int covered(const std::vector<ReferenceHome>& homes) {
  int n = 0;
  for (const ReferenceHome& h : homes)
    n += h.covered ? 1 : 0;
  return n;
}

TEST(ReferenceNames, HomeOfAKernelComesFromTheCatalogue) {
  const ReferenceHome home = find_reference_home("cutlass_scaled_fp4_mm");

  EXPECT_EQ(home.home, "nvfp4_gemm");
  EXPECT_EQ(home.folder, "kernels/gemm/nvfp4_gemm");
  EXPECT_EQ(home.backends, "cpu, cuda");
  EXPECT_EQ(home.status, "covered");
  EXPECT_EQ(home.kernel, find_kernel("nvfp4_gemm"));
  EXPECT_TRUE(home.covered);
}

TEST(ReferenceNames, TheTwoThatAreNoKernelsSayWhatTheyAre) {
  EXPECT_EQ(find_reference_home("weak_ref_tensor").status, "View, by construction");
  EXPECT_EQ(find_reference_home("cutlass_mla_get_workspace_size").status, "MlaDecode::workspace()");
}

TEST(ReferenceNames, ANameTakenOutOfTheListIsMissingAndCounted) {
  const int before = covered(reference_homes());
  const std::vector<KernelEntry> kernels = kernels_without("cutlass_scaled_fp4_mm");
  const std::vector<ReferenceHome> homes = reference_homes(kernels);

  EXPECT_EQ(covered(homes), before - 1);
  EXPECT_THAT(reference_coverage_line(homes),
              HasSubstr(str_cat(before - 1, " of ", kOutOf, " reference names covered; ")));
  EXPECT_THAT(reference_coverage_line(homes), HasSubstr("cutlass_scaled_fp4_mm (missing)"));
  EXPECT_EQ(find_reference_home("cutlass_scaled_fp4_mm", kernels).status, "missing");
}

TEST(ReferenceNames, WorkspaceSizeGoesWithItsKernel) {
  const std::vector<KernelEntry> kernels = kernels_without("cutlass_mla_decode");

  EXPECT_EQ(find_reference_home("cutlass_mla_get_workspace_size", kernels).status, "missing");
}

TEST(ReferenceNames, UnknownNameIsMissing) {
  EXPECT_FALSE(find_reference_home("flash_attention_9").covered);
}

TEST(ReferenceNames, OnlyKernelsWhoseRowsAllPassedStayCovered) {
  std::vector<ReferenceHome> homes = {
      find_reference_home("rmsnorm"), find_reference_home("silu_and_mul"),
      find_reference_home("gelu_and_mul"), find_reference_home("weak_ref_tensor")};
  const BenchRow rows[] = {row_of("rmsnorm", RowStatus::kOk), row_of("silu_mul", RowStatus::kOk),
                           row_of("silu_mul", RowStatus::kWrong)};

  hold_to_rows(homes, rows);

  EXPECT_EQ(reference_coverage_line(homes),
            "2 of 4 reference names covered; silu_and_mul (wrong), gelu_and_mul (not checked)");
}

TEST(ReferenceNames, TableHasALineANameAndStraightColumns) {
  const std::string table = write_reference_table(reference_homes());

  std::vector<size_t> lengths;
  for (size_t at = 0; at < table.size();) {
    const size_t end = table.find('\n', at);
    lengths.push_back(end - at);
    at = end + 1;
  }
  ASSERT_EQ(lengths.size(), static_cast<size_t>(kOutOf + 2));
  for (size_t length : lengths)
    EXPECT_EQ(length, lengths[0]);
  EXPECT_THAT(table, HasSubstr("| weak_ref_tensor "));
}

}  // namespace
}  // namespace fathom
