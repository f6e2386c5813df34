#include "fathom/bench/roofline/svg.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(Svg, DocumentsHaveAHeadATitleAndAnEnd) {
  SvgWriter svg(120, 80.5, "a & b");
  svg.line({1, 2}, {3.25, 4}, {.stroke = "#333", .stroke_width = 2, .dash = "4 2"});

  EXPECT_EQ(svg.take(),
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"120\" height=\"80.5\" viewBox=\"0 0 "
            "120 80.5\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\">\n"
            "<title>a &amp; b</title>\n"
            "<rect x=\"0\" y=\"0\" width=\"120\" height=\"80.5\" fill=\"#fff\"/>\n"
            "<line x1=\"1\" y1=\"2\" x2=\"3.25\" y2=\"4\" fill=\"none\" stroke=\"#333\" "
            "stroke-width=\"2\" stroke-dasharray=\"4 2\"/>\n"
            "</svg>\n");
}

TEST(Svg, TextIsEscapedAndAlwaysValid) {
  SvgWriter svg(1, 1, "");
  svg.begin_group("<x> \"y\" \x01 \xFF");
  svg.text({0, 0}, "1 < 2 & 3", {.size = 9, .anchor = TextAnchor::kEnd, .bold = true});
  svg.end_group();
  const std::string text = svg.take();

  EXPECT_NE(text.find("<title>&lt;x&gt; &quot;y&quot; \xEF\xBF\xBD \xEF\xBF\xBD</title>"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("text-anchor=\"end\" font-weight=\"bold\" fill=\"#222\">1 &lt; 2 &amp; "
                      "3</text>"),
            std::string::npos)
      << text;
}

TEST(Svg, BoxesOverlapWhereTheyShareArea) {
  const SvgBox box{10, 10, 10, 5};

  EXPECT_TRUE(box.overlaps({19, 14, 5, 5}));
  EXPECT_FALSE(box.overlaps({20, 10, 5, 5})) << "they touch";
  EXPECT_FALSE(box.overlaps({10, 15, 5, 5}));
  EXPECT_TRUE(box.contains({11, 11, 2, 2}));
  EXPECT_FALSE(box.contains({11, 11, 20, 2}));
}

TEST(Svg, WidthOfATextCountsCharactersNotBytes) {
  EXPECT_DOUBLE_EQ(svg_text_width("ab", 10), svg_text_width("\xC3\xA4\xC3\xB6", 10));
}

TEST(Svg, StripesAreAFillThatShapesReferToByName) {
  SvgWriter svg(10, 10, "t");
  svg.define_stripes("cache", "#fff", "#000");
  svg.rect({1, 1, 2, 2}, {.fill = "url(#cache)"});
  const std::string text = svg.take();

  EXPECT_NE(text.find("<pattern id=\"cache\""), std::string::npos) << text;
  EXPECT_NE(text.find("height=\"2\" fill=\"url(#cache)\"/>"), std::string::npos) << text;
}

}  // namespace
}  // namespace fathom
