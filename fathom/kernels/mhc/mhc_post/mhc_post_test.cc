#include "fathom/kernels/mhc/mhc_post/mhc_post.h"

#include <cmath>

#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

TEST(MhcPost, ContractsTheFirstIndexOfComb) {
  TestExec exec;
  for (const std::string& variant : variants_of<MhcPost>()) {
    const TestTensor y({1, 1}, Format::kF32, 10.0f);
    const TestTensor streams({1, 4, 1}, Format::kF32, {1, 2, 3, 4});
    const TestTensor post({1, 4}, Format::kF32, {0, 0, 0, 2});
    const TestTensor comb(
        {1, 4, 4}, Format::kF32,
        {.527439f, .116047f, .066253f, .290260f, .166438f, .602189f, .139778f, .091595f, .092053f,
         .090768f, .631298f, .185879f, .214069f, .190995f, .162670f, .432264f});
    const TestTensor out({1, 4, 1}, Format::kF32, NAN);
    FATHOM_EXPECT_OK(launch<MhcPost>(exec.with("mhc_post", variant), "hc_post",
                                     {.y = y.view(),
                                      .streams = streams.view(),
                                      .post = post.view(),
                                      .comb = comb.view(),
                                      .out = out.view()}));
    expect_near(out.values(), {1.992749, 2.356711, 2.890385, 22.760146}, 8e-6);
  }
}

TEST(MhcPost, EveryVariantHasTheBitsOfThePortableOneInPlaceOrNot) {
  TestExec exec;
  Rng rng(7);
  for (Format format : {Format::kBf16, Format::kF32}) {
    for (int64_t n : {1, 3, 4, 8}) {
      TestTensor y({3, 1100}, format);
      TestTensor streams({3, n, 1100}, format);
      TestTensor post({3, n}, Format::kF32);
      TestTensor comb({3, n, n}, Format::kF32);
      for (TestTensor* t : {&y, &streams, &post, &comb})
        t->randomise(rng, 1.0f);
      const TestTensor expected({3, n, 1100}, format, NAN);
      MhcPost::Args args{.y = y.view(),
                         .streams = streams.view(),
                         .post = post.view(),
                         .comb = comb.view(),
                         .out = expected.view()};
      FATHOM_EXPECT_OK(launch<MhcPost>(exec.with("mhc_post", "portable"), "hc_post", args));
      for (const std::string& variant : variants_of<MhcPost>()) {
        const TestTensor apart({3, n, 1100}, format, NAN);
        args.out = apart.view();
        FATHOM_EXPECT_OK(launch<MhcPost>(exec.with("mhc_post", variant), "hc_post", args));
        EXPECT_EQ(apart.bytes(), expected.bytes()) << variant << " " << n;

        const TestTensor copy({3, n, 1100}, format, streams.values());
        MhcPost::Args in_place = args;
        in_place.streams = copy.view();
        in_place.out = copy.view();
        FATHOM_EXPECT_OK(launch<MhcPost>(exec.with("mhc_post", variant), "hc_post", in_place));
        EXPECT_EQ(copy.bytes(), expected.bytes()) << variant << " " << n;
      }
    }
  }
}

TEST(MhcPost, RefusesStreamsOfAnotherFormat) {
  TestExec exec;
  const TestTensor y({1, 2}, Format::kBf16);
  const TestTensor streams({1, 2, 2}, Format::kF32);
  const TestTensor post({1, 2}, Format::kF32);
  const TestTensor comb({1, 2, 2}, Format::kF32);

  const Status status = launch<MhcPost>(*exec, "hc_post",
                                        {.y = y.view(),
                                         .streams = streams.view(),
                                         .post = post.view(),
                                         .comb = comb.view(),
                                         .out = streams.view()});

  EXPECT_NE(status.message().find("y is bf16 but streams is f32"), std::string::npos)
      << status.message();
}

TEST(MhcExpand, CopiesBitsAndNothingElse) {
  TestExec exec;
  TestTensor x({2, 3}, Format::kBf16, {1, -0.0f, 3, 4, 5, 6});
  x.set(2, NAN);
  const TestTensor streams({2, 4, 3}, Format::kBf16);

  FATHOM_EXPECT_OK(
      launch<MhcExpand>(*exec, "hc_expand", {.x = x.view(), .streams = streams.view()}));

  for (int64_t row = 0; row < 8; ++row)
    EXPECT_EQ(std::memcmp(streams.bytes().data() + row * 6, x.bytes().data() + row / 4 * 6, 6), 0);
}

}  // namespace
}  // namespace fathom
