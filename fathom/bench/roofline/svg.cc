#include "fathom/bench/roofline/svg.h"

#include "fathom/base/str_cat.h"
#include "fathom/text/figures.h"
#include "fathom/text/utf8.h"

namespace fathom {
namespace {

constexpr std::string_view kFont = "DejaVu Sans Mono, Menlo, Consolas, monospace";
constexpr double kCharacterWidth = 0.61;  // of the size; 0.602 in most monospaced fonts

std::string number(double value) {
  std::string text = format_fixed(value, 2);
  while (text.ends_with('0'))
    text.pop_back();
  if (text.ends_with('.')) text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : utf8_lossy(text)) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') {
      out += "\xEF\xBF\xBD";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

double svg_text_width(std::string_view text, double size) {
  size_t characters = 0;
  for (char c : text)
    characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return static_cast<double>(characters) * size * kCharacterWidth;
}

SvgWriter::SvgWriter(double width, double height, std::string_view title) {
  const std::string size = str_cat("width=\"", number(width), "\" height=\"", number(height), "\"");
  out_ = str_cat("<svg xmlns=\"http://www.w3.org/2000/svg\" ", size, " viewBox=\"0 0 ",
                 number(width), " ", number(height), "\" font-family=\"", kFont, "\">\n<title>",
                 escaped(title), "</title>\n");
  rect({0, 0, width, height}, {.fill = "#fff"});
}

void SvgWriter::attribute(std::string_view name, double value) {
  attribute(name, number(value));
}

void SvgWriter::attribute(std::string_view name, std::string_view value) {
  str_append(out_, str_cat(" ", name, "=\"", escaped(value), "\""));
}

void SvgWriter::style(const SvgStyle& style) {
  attribute("fill", style.fill);
  if (style.stroke == "none") return;
  attribute("stroke", style.stroke);
  attribute("stroke-width", style.stroke_width);
  if (!style.dash.empty()) attribute("stroke-dasharray", style.dash);
}

void SvgWriter::line(SvgPoint from, SvgPoint to, const SvgStyle& line_style) {
  out_ += "<line";
  attribute("x1", from.x);
  attribute("y1", from.y);
  attribute("x2", to.x);
  attribute("y2", to.y);
  style(line_style);
  out_ += "/>\n";
}

void SvgWriter::polygon(const std::vector<SvgPoint>& points, const SvgStyle& polygon_style) {
  std::string list;
  for (const SvgPoint& p : points)
    str_append(list, str_cat(list.empty() ? "" : " ", number(p.x), ",", number(p.y)));
  out_ += "<polygon";
  attribute("points", list);
  style(polygon_style);
  out_ += "/>\n";
}

void SvgWriter::circle(SvgPoint centre, double radius, const SvgStyle& circle_style) {
  out_ += "<circle";
  attribute("cx", centre.x);
  attribute("cy", centre.y);
  attribute("r", radius);
  style(circle_style);
  out_ += "/>\n";
}

void SvgWriter::rect(const SvgBox& box, const SvgStyle& rect_style) {
  out_ += "<rect";
  attribute("x", box.x);
  attribute("y", box.y);
  attribute("width", box.width);
  attribute("height", box.height);
  style(rect_style);
  out_ += "/>\n";
}

void SvgWriter::define_stripes(std::string_view id,
                               std::string_view ground,
                               std::string_view stripe) {
  out_ += "<defs><pattern";
  attribute("id", id);
  out_ +=
      " width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
      "patternTransform=\"rotate(45)\">\n";
  rect({0, 0, 6, 6}, {.fill = ground});
  line({0, 0}, {0, 6}, {.stroke = stripe, .stroke_width = 2});
  out_ += "</pattern></defs>\n";
}

void SvgWriter::text(SvgPoint at, std::string_view text, const SvgText& text_style) {
  out_ += "<text";
  attribute("x", at.x);
  attribute("y", at.y);
  attribute("font-size", text_style.size);
  if (text_style.anchor == TextAnchor::kMiddle) attribute("text-anchor", "middle");
  if (text_style.anchor == TextAnchor::kEnd) attribute("text-anchor", "end");
  if (text_style.bold) attribute("font-weight", "bold");
  attribute("fill", text_style.fill);
  str_append(out_, str_cat(">", escaped(text), "</text>\n"));
}

void SvgWriter::begin_group(std::string_view tooltip) {
  str_append(out_, str_cat("<g><title>", escaped(tooltip), "</title>\n"));
}

void SvgWriter::end_group() {
  out_ += "</g>\n";
}

std::string SvgWriter::take() {
  out_ += "</svg>\n";
  return std::exchange(out_, {});
}

}  // namespace fathom
