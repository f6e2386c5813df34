#include "fathom/bench/roofline/chart.h"

#include <algorithm>
#include <charconv>
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "fathom/base/rng.h"
#include "fathom/bench/roofline/analysis.h"

namespace fathom {
namespace {

Peaks some_peaks() {
  Peaks peaks{.device = "cpu", .source = "measured"};
  peaks.read_gbps = 40;
  peaks.copy_gbps = 20;
  peaks.f32_gflops = 300;
  peaks.bf16_gflops = 310;  // close to the one below
  peaks.int8_gops = 1200;
  return peaks;
}

/// Points as crowded as they get: many at the same place.
RooflineChart crowded_chart(int count) {
  Rng rng(7, 1);
  RooflineChart chart = make_chart("Roofline", some_peaks(), {});
  for (int i = 0; i < count; ++i) {
    const bool copies = i % 9 == 0;
    RooflinePoint p{.kernel = i % 2 == 0 ? "rmsnorm" : "nvfp4_gemm",
                    .op = str_cat("op", i % 40),
                    .label = "case <&>",
                    .group = str_cat("group ", i % 3),
                    .tokens = 8,
                    .us = 10.0 + i,
                    .flops = copies ? 0 : 1e6 * (1 + i % 5),
                    .bytes = 1e6 + 1e5 * rng.next_uniform()};
    chart.points.push_back(p);
  }
  hold_to(chart.peaks, chart.points);
  set_shares(chart.points);
  return chart;
}

size_t count_of(const std::string& text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

TEST(RooflineLayout, NoLabelOverlapsAnotherAndAllAreInside) {
  for (int count : {1, 30, 300}) {
    const ChartLayout layout = layout_chart(crowded_chart(count));

    ASSERT_EQ(layout.markers.size(), static_cast<size_t>(count));
    for (size_t i = 0; i < layout.labels.size(); ++i) {
      const SvgBox& box = layout.labels[i].box;
      EXPECT_TRUE(layout.plot.contains(box) || layout.lane.contains(box)) << layout.labels[i].text;
      for (size_t j = 0; j < i; ++j) {
        EXPECT_FALSE(box.overlaps(layout.labels[j].box))
            << layout.labels[i].text << " over " << layout.labels[j].text;
      }
    }
  }
}

// Numbers that touch read as one number, and one that lies on a marker hides it.
TEST(RooflineLayout, LabelsKeepApartAndOffTheMarkers) {
  for (int count : {1, 30, 300}) {
    const ChartLayout layout = layout_chart(crowded_chart(count));

    for (size_t i = layout.ceilings.size(); i < layout.labels.size(); ++i) {
      const ChartLayout::Label& label = layout.labels[i];
      const SvgBox wide{label.box.x - 3.9, label.box.y - 1.9, label.box.width + 7.8,
                        label.box.height + 3.8};
      for (size_t j = 0; j < i; ++j)
        EXPECT_FALSE(wide.overlaps(layout.labels[j].box))
            << label.text << " beside " << layout.labels[j].text;
      for (const ChartLayout::Marker& m : layout.markers) {
        EXPECT_FALSE(
            label.box.overlaps({m.at.x - m.radius, m.at.y - m.radius, 2 * m.radius, 2 * m.radius}))
            << label.text;
      }
    }
  }
}

TEST(RooflineLayout, PointsOfOneKeyAtOnePlaceShareANumber) {
  RooflineChart chart = crowded_chart(2);
  chart.points[1] = chart.points[0];
  const ChartLayout layout = layout_chart(chart);

  EXPECT_EQ(layout.labels.size(), 1 + layout.ceilings.size());
}

TEST(RooflineLayout, FewPointsAllHaveTheNumberOfTheirKey) {
  const RooflineChart chart = crowded_chart(30);
  const ChartLayout layout = layout_chart(chart);

  ASSERT_EQ(layout.labels.size(), 30 + layout.ceilings.size());
  std::map<std::string, int> numbers;
  for (const ChartLayout::Label& label : layout.labels)
    ++numbers[label.text];
  for (const RooflinePoint& p : chart.points) {
    const auto key = std::find(layout.keys.begin(), layout.keys.end(), p.op + "  " + p.kernel);
    ASSERT_NE(key, layout.keys.end()) << p.op;
    EXPECT_EQ(numbers[str_cat(key - layout.keys.begin() + 1)], 1) << p.op;
  }
}

TEST(RooflineLayout, NamesOfCeilingsHideNoMarker) {
  RooflineChart chart = crowded_chart(1);
  RooflinePoint& point = chart.points[0];  // at the right end, just above a ceiling
  point.bytes = 1e6;
  point.flops = 1e9;
  point.us = point.flops / (1.1 * chart.peaks.f32_gflops) * 1e-3;
  const ChartLayout layout = layout_chart(chart);

  const ChartLayout::Marker& m = layout.markers[0];
  const SvgBox marker{m.at.x - m.radius, m.at.y - m.radius, 2 * m.radius, 2 * m.radius};
  for (const ChartLayout::Label& label : layout.labels) {
    EXPECT_FALSE(label.box.overlaps(marker)) << label.text;
  }
}

TEST(RooflineLayout, ACeilingForEachFormatAndALineForEachRateOfMemory) {
  const ChartLayout layout = layout_chart(crowded_chart(5));

  ASSERT_EQ(layout.ceilings.size(), 3u);
  EXPECT_EQ(layout.ceilings[0].name, "int8 1.20 TFLOP/s");
  EXPECT_EQ(layout.ceilings[1].name, "bf16 310 GFLOP/s");
  ASSERT_EQ(layout.memory.size(), 2u);
  EXPECT_NE(layout.memory[0].dash, layout.memory[1].dash) << "told apart without colour";
  EXPECT_NE(layout.ceilings[0].dash, layout.ceilings[1].dash);
  // The roof of memory meets the highest ceiling.
  EXPECT_NEAR(layout.memory[0].to.y, layout.y_of(1200), 1e-6);
  EXPECT_NEAR(layout.memory[0].to.x, layout.x_of(30), 1e-6);
}

TEST(RooflineLayout, PointsLieWhereTheirRatesAre) {
  RooflineChart chart = crowded_chart(2);
  chart.points[1].flops = 4e6;
  chart.points[1].bytes = 1e6;
  chart.points[1].us = 100;
  const ChartLayout layout = layout_chart(chart);

  EXPECT_NEAR(layout.markers[1].at.x, layout.x_of(4), 1e-6);
  EXPECT_NEAR(layout.markers[1].at.y, layout.y_of(40), 1e-6);
  EXPECT_TRUE(layout.lane.contains({layout.markers[0].at.x, layout.markers[0].at.y, 1, 1}))
      << "what only moves stands in a lane of its own";
}

// Groups that look alike could not be told apart.
TEST(RooflineChart, EachOfTwelveGroupsLooksDifferent) {
  RooflineChart chart = crowded_chart(12);
  for (size_t i = 0; i < chart.points.size(); ++i) {
    chart.points[i].group = str_cat("group ", i);
    chart.points[i].kernel = "rmsnorm";
  }
  const std::string svg = draw_chart(chart);

  std::set<std::string> looks;
  for (size_t at = svg.find("<circle"); at != std::string::npos; at = svg.find("<circle", at + 1)) {
    const std::string circle = svg.substr(at, svg.find("/>", at) - at);
    looks.insert(circle.substr(circle.find("fill=")));
  }
  EXPECT_EQ(looks.size(), 12u);
}

// Every text lies within the picture, however long its names are.
TEST(RooflineChart, TextsAreWhole) {
  RooflineChart chart = crowded_chart(5);
  chart.title = "Roofline: kernels on a machine " + std::string(120, 'x');
  chart.points[0].op = "an_op_whose_name_is_as_long_as_names_of_ops_get_in_practice_and_then_some";
  const std::string svg = draw_chart(chart);

  const auto number_of = [&](std::string_view attribute, size_t from) {
    const size_t at = svg.find(str_cat(" ", attribute, "=\""), from);
    double value = 0;
    std::from_chars(svg.data() + at + attribute.size() + 3, svg.data() + svg.size(), value);
    return value;
  };
  const double width = number_of("width", 0);
  const double height = number_of("height", 0);
  int texts = 0;
  for (size_t at = svg.find("<text"); at != std::string::npos; at = svg.find("<text", at + 1)) {
    const size_t begin = svg.find('>', at) + 1;
    const std::string text = svg.substr(begin, svg.find('<', begin) - begin);
    const std::string_view tag = std::string_view(svg).substr(at, begin - at);
    const double size = number_of("font-size", at);
    const double left = number_of("x", at);
    ++texts;
    EXPECT_LE(number_of("y", at), height) << text;
    if (tag.find("text-anchor") == std::string_view::npos) {
      EXPECT_LE(left + svg_text_width(text, size), width) << text;
    }
  }
  EXPECT_GT(texts, 20);
}

TEST(RooflineChart, EveryPointHasATooltip) {
  const std::string svg = draw_chart(crowded_chart(50));

  EXPECT_EQ(count_of(svg, "<g><title>"), 50u);
  EXPECT_EQ(count_of(svg, "<g>"), count_of(svg, "</g>"));
  EXPECT_NE(svg.find("case &lt;&amp;&gt;"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(RooflineAnalysis, SaysWhatBoundsWhatAndWhatWouldMoveIt) {
  const Peaks peaks = some_peaks();
  RooflinePoint memory{.kernel = "nvfp4_gemm",
                       .op = "q_b_proj",
                       .group = "decode B=1",
                       .tokens = 1,
                       .us = 2000,
                       .flops = 8e7,
                       .bytes = 2e7,
                       .unit = MathUnit::kBf16};
  RooflinePoint compute = memory;
  compute.op = "o_proj";
  compute.flops = 8e9;
  compute.us = 1e5;
  RooflinePoint tiny = memory;
  tiny.op = "topk";
  tiny.flops = tiny.bytes = 1000;
  tiny.us = 5;
  std::vector<RooflinePoint> points = {memory, compute, tiny};
  hold_to(peaks, points);
  set_shares(points);

  const std::string text = write_analysis(points, peaks, "Roofline of a test", "roofline.svg");

  EXPECT_NE(text.find("![Roofline](roofline.svg)"), std::string::npos);
  EXPECT_EQ(remedy_for(points[0], peaks),
            "moves 10.0 of 40.0 GB/s: more bytes in flight, or less work a byte; at about 2 tokens "
            "arithmetic binds instead, if the bytes stay");
  EXPECT_EQ(remedy_for(points[1], peaks),
            "reaches 0.0800 of 0.310 TFLOP/s in bf16: a better product loop; its 400 FLOP/byte "
            "leave memory idle");
  EXPECT_EQ(remedy_for(points[2], peaks),
            "starting it costs more than its work (0.0250 of 5.00 us): one launch for it and a "
            "neighbour");
  for (const char* bound : {"| memory ", "| compute ", "| latency ", "| all "})
    EXPECT_NE(text.find(bound), std::string::npos) << bound << "\n" << text;
  points[0].roof_us = 0.9 * points[0].us;
  EXPECT_EQ(remedy_for(points[0], peaks).rfind("at the roof: only fewer bytes help", 0), 0u);
}

}  // namespace
}  // namespace fathom
