// Writes an SVG document: shapes, text and tooltips, in user units of one pixel.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom {

struct SvgPoint {
  double x = 0;
  double y = 0;
};

/// A rectangle with its sides along the axes.
struct SvgBox {
  double x = 0;  ///< left
  double y = 0;  ///< top
  double width = 0;
  double height = 0;

  bool overlaps(const SvgBox& other) const {
    return x < other.x + other.width && other.x < x + width && y < other.y + other.height &&
           other.y < y + height;
  }

  bool contains(const SvgBox& other) const {
    return other.x >= x && other.y >= y && other.x + other.width <= x + width &&
           other.y + other.height <= y + height;
  }
};

/// How a shape looks: presentation attributes as SVG has them. Empty ones are left out.
struct SvgStyle {
  std::string_view fill = "none";
  std::string_view stroke = "none";
  double stroke_width = 1;
  std::string_view dash{};  ///< "6 3"
};

enum class TextAnchor { kStart, kMiddle, kEnd };

struct SvgText {
  double size = 12;
  TextAnchor anchor = TextAnchor::kStart;
  bool bold = false;
  std::string_view fill = "#222";
};

/// Streams one document. Numbers have two decimals; text is escaped, and control characters that
/// XML forbids become U+FFFD.
class SvgWriter {
 public:
  SvgWriter(double width, double height, std::string_view title);

  void line(SvgPoint from, SvgPoint to, const SvgStyle& style);
  void polygon(const std::vector<SvgPoint>& points, const SvgStyle& style);
  void circle(SvgPoint centre, double radius, const SvgStyle& style);
  void rect(const SvgBox& box, const SvgStyle& style);

  /// Defines a fill of slanted stripes, so that areas differ without colour too: "url(#id)".
  void define_stripes(std::string_view id, std::string_view ground, std::string_view stripe);

  /// `at` is the start, middle or end of the base line. The font is a monospaced one.
  void text(SvgPoint at, std::string_view text, const SvgText& style);

  /// What follows until end_group() shows this text when pointed at.
  void begin_group(std::string_view tooltip);
  void end_group();

  /// The whole document. The writer is empty afterwards.
  std::string take();

 private:
  void attribute(std::string_view name, double value);
  void attribute(std::string_view name, std::string_view value);
  void style(const SvgStyle& style);

  std::string out_;
};

/// Width of a text in the monospaced font of that size.
double svg_text_width(std::string_view text, double size);

}  // namespace fathom
