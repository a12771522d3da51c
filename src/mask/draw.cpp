// Pictures of masks: a layout of rectangles and texts, and two formats to write it in.
#include "mask/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "mask/glyphs.h"
#include "mask/picture.h"
#include "mask/png.h"
#include "support/integer.h"

namespace tilewright::mask {
namespace {

// Indices of colours: shades of a cell by the fraction of its pairs that attend, from none to all.
constexpr int kShades = 15;
constexpr int kPaper = kShades + 1, kInk = kShades + 2, kFrame = kShades + 3;

/// Pale grey if no pair attends, pale orange to orange for some, blue for all.
std::vector<Colour> palette() {
    std::vector<Colour> colours = {{236, 238, 241}};
    for (int shade = 1; shade < kShades; ++shade) {
        const auto mix = [&](int pale, int deep) {
            return static_cast<std::uint8_t>(
                std::lround(pale + (deep - pale) * static_cast<double>(shade) / kShades));
        };
        colours.push_back({mix(252, 232), mix(222, 132), mix(186, 44)});
    }
    colours.insert(colours.end(), {{38, 84, 150}, {255, 255, 255}, {60, 64, 70}, {150, 155, 162}});
    return colours;
}

int shade_of(float share) {
    if (share <= 0) return 0;
    if (share >= 0.9999F) return kShades;
    return std::clamp(static_cast<int>(std::lround(share * kShades)), 1, kShades - 1);
}

struct Rectangle {
    std::int64_t x, y, width, height;
    int colour;
};

/// `x` is where the text begins, has its centre or ends; `y` is the top of its letters. Rotated
/// texts run upwards, with x and y exchanged.
struct Text {
    enum class Anchor : std::uint8_t { start, middle, end };
    std::int64_t x, y;
    std::string text;
    Anchor anchor = Anchor::start;
    bool rotated = false;
};

struct Scene {
    std::int64_t width = 0, height = 0;
    std::vector<Rectangle> rectangles;
    std::vector<Text> texts;
};

// Sizes in pixels.
constexpr int kGlyphScale = 2;
constexpr std::int64_t kLetter = (kGlyphWidth + 1) * kGlyphScale;
constexpr std::int64_t kLine = (kGlyphHeight + 1) * kGlyphScale;
constexpr std::int64_t kTick = 6, kGap = 10, kSwatch = 14, kLeastSide = 96;

std::int64_t width_of(std::string_view text) {
    return kLetter * std::ssize(text);
}

/// Rectangles of one shade: runs along a line, merged with equal runs of the line above.
std::vector<Rectangle> rectangles_of(const Picture& picture) {
    std::vector<Rectangle> done, open;
    for (std::int64_t y = 0; y <= picture.height; ++y) {
        std::vector<Rectangle> line;
        for (std::int64_t x = 0; x < picture.width && y < picture.height;) {
            const auto at = [&](std::int64_t column) {
                return shade_of(picture.cells[y * picture.width + column]);
            };
            std::int64_t end = x + 1;
            while (end < picture.width && at(end) == at(x)) ++end;
            if (at(x) != 0) line.push_back({x, y, end - x, 1, at(x)});
            x = end;
        }
        for (Rectangle& rectangle : line) {
            for (Rectangle& above : open) {
                if (above.x != rectangle.x || above.width != rectangle.width ||
                    above.colour != rectangle.colour || above.height == 0)
                    continue;
                rectangle.y = above.y;
                rectangle.height = above.height + 1;
                above.height = 0;
                break;
            }
        }
        for (const Rectangle& above : open) {
            if (above.height > 0) done.push_back(above);
        }
        open = std::move(line);
    }
    return done;
}

/// Distance between labelled positions of an axis: a quarter of the length, or 1, 2 or 5 times a
/// power of ten, so that each label has `room` of the axis's `pixels` pixels.
std::int64_t tick_step(std::int64_t length, std::int64_t pixels, std::int64_t room) {
    const auto fits = [&](std::int64_t step) { return step * pixels >= room * length; };
    if (length % 4 == 0 && length >= 8 && fits(length / 4)) return length / 4;
    for (std::int64_t power = 1;; power *= 10) {
        for (const int factor : {1, 2, 5}) {
            if (fits(factor * power)) return factor * power;
        }
    }
}

/// The panels, arranged in rows.
class Layout {
  public:
    explicit Layout(const MaskData& data) : data_(data) {
        const std::int64_t heads = data.batch * data.heads;
        const std::int64_t drawn = std::min(heads, kMostPanels);
        const std::int64_t side = drawn == 1 ? 512 : drawn <= 4 ? 384 : 256;
        const std::vector<Picture> panels = pictures(data, drawn, side);
        if (panels.empty()) {
            scene_.width = 2 * kGap + width_of(kNothing);
            scene_.height = kLine + 2 * kGap;
            text({kGap, kGap, std::string(kNothing)});
            return;
        }
        height_ = panels.front().height;
        width_ = panels.front().width;
        const std::int64_t scale = std::max<std::int64_t>(1, side / std::max(height_, width_));
        // A single query over many keys must be visible, too.
        scale_x_ = std::max(scale, kLeastSide / width_);
        scale_y_ = std::max(scale, kLeastSide / height_);
        left_ = kGap + kLine + width_of(fmt::format("{}", data.q_len)) + kTick + 4;
        top_ = kGap + 3 * kLine + kTick;
        const std::int64_t columns = drawn == 1 ? 1 : drawn <= 4 ? 2 : drawn <= 9 ? 3 : 4;
        // The last label of an axis extends past the panel by half its width.
        const std::int64_t right = kGap + width_of(fmt::format("{}", data.kv_len)) / 2;
        const std::int64_t pitch_x =
            left_ + std::max(width_ * scale_x_ + right, width_of(title_of(panels.back())));
        const std::int64_t pitch_y = top_ + height_ * scale_y_ + 2 * kGap;
        for (std::size_t i = 0; i < panels.size(); ++i) {
            const auto place = static_cast<std::int64_t>(i);
            panel(panels[i], place % columns * pitch_x + left_, place / columns * pitch_y + top_);
        }
        const std::int64_t rows = ceil_div(drawn, columns);
        scene_.width = std::min(drawn, columns) * pitch_x;
        scene_.height = rows * pitch_y + kGap;
        legend(panels);
        if (heads > drawn) {
            line_of({{-1, fmt::format("{} of {} heads, {} are not drawn", drawn, heads,
                                      heads - drawn)}});
        }
        scene_.height += kGap / 2;
    }

    const Scene& scene() const { return scene_; }

  private:
    static constexpr std::int64_t kMostPanels = 12;
    static constexpr std::string_view kNothing = "no queries or no keys";

    void text(Text text) { scene_.texts.push_back(std::move(text)); }
    void fill(std::int64_t x, std::int64_t y, std::int64_t width, std::int64_t height, int colour) {
        scene_.rectangles.push_back({x, y, width, height, colour});
    }

    std::string title_of(const Picture& picture) const {
        if (data_.batch * data_.heads == 1) return "all batches and heads";
        if (data_.batch == 1) return fmt::format("head {}", picture.h);
        if (data_.heads == 1) return fmt::format("batch {}, all heads", picture.b);
        return fmt::format("batch {}, head {}", picture.b, picture.h);
    }

    void panel(const Picture& picture, std::int64_t x, std::int64_t y) {
        const std::int64_t width = width_ * scale_x_, height = height_ * scale_y_;
        text({x, y - kTick - 3 * kLine, title_of(picture)});
        text({x + width / 2, y - kTick - 2 * kLine, "keys", Text::Anchor::middle});
        text({y + height / 2, x - left_ + kGap, "queries", Text::Anchor::middle, true});
        fill(x - 1, y - 1, width + 2, height + 2, kFrame);
        fill(x, y, width, height, 0);
        for (const Rectangle& r : rectangles_of(picture))
            fill(x + r.x * scale_x_, y + r.y * scale_y_, r.width * scale_x_, r.height * scale_y_,
                 r.colour);
        const std::int64_t keys = data_.kv_len, queries = data_.q_len;
        const std::int64_t room = width_of(fmt::format("{}", keys)) + kLetter;
        for (std::int64_t at = 0, step = tick_step(keys, width, room); at <= keys; at += step) {
            const std::int64_t place = x + at * width / keys;
            fill(place, y - kTick, 1, kTick, kFrame);
            text({place, y - kTick - kLine, fmt::format("{}", at), Text::Anchor::middle});
        }
        for (std::int64_t at = 0, step = tick_step(queries, height, kLine); at <= queries;
             at += step) {
            const std::int64_t place = y + at * height / queries;
            fill(x - kTick, place, kTick, 1, kFrame);
            text({x - kTick - 4, place - 7 * kGlyphScale / 2, fmt::format("{}", at),
                  Text::Anchor::end});
        }
    }

    /// Colour swatches (-1: none) with words, on as many lines as they need.
    void line_of(const std::vector<std::pair<int, std::string>>& items) {
        std::int64_t x = left_;
        for (const auto& [colour, words] : items) {
            const std::int64_t swatch = colour < 0 ? 0 : kSwatch + 6;
            const std::int64_t width = swatch + width_of(words) + 2 * kGap;
            if (x > left_ && x + width > scene_.width) {
                x = left_;
                scene_.height += kLine + 4;
            }
            scene_.width = std::max(scene_.width, x + width);
            if (colour >= 0) {
                fill(x - 1, scene_.height - 1, kSwatch + 2, kSwatch + 2, kFrame);
                fill(x, scene_.height, kSwatch, kSwatch, colour);
            }
            text({x + swatch, scene_.height, words});
            x += width;
        }
        scene_.height += kLine + 4;
    }

    void legend(const std::vector<Picture>& panels) {
        const double q = static_cast<double>(data_.q_len) / static_cast<double>(height_),
                     kv = static_cast<double>(data_.kv_len) / static_cast<double>(width_);
        if (q == 1 && kv == 1) {
            line_of({{kShades, "attends"}, {0, "masked"}});
            return;
        }
        std::vector<std::pair<int, std::string>> items = {{kShades, "all pairs attend"}};
        const bool some = std::any_of(panels.begin(), panels.end(), [](const Picture& picture) {
            return std::any_of(picture.cells.begin(), picture.cells.end(), [](float share) {
                const int shade = shade_of(share);
                return shade > 0 && shade < kShades;
            });
        });
        if (some) items.insert(items.end(), {{11, "many"}, {3, "few"}});
        items.emplace_back(0, "none");
        items.emplace_back(-1, fmt::format("a cell: {:.3g} x {:.3g} pairs", q, kv));
        line_of(items);
    }

    const MaskData& data_;
    Scene scene_;
    std::int64_t height_ = 0, width_ = 0;     ///< of a panel, in cells
    std::int64_t scale_x_ = 1, scale_y_ = 1;  ///< pixels per cell
    std::int64_t left_ = 0, top_ = 0;         ///< offset of a panel's cells within its place
};

/// Paints letters, clipped to the picture.
void paint(const Text& text, const Scene& scene, std::vector<std::uint8_t>& pixels) {
    const std::int64_t width = width_of(text.text);
    std::int64_t begin = text.x;
    if (text.anchor == Text::Anchor::middle) begin -= width / 2 * (text.rotated ? -1 : 1);
    if (text.anchor == Text::Anchor::end) begin -= width;
    const auto dot = [&](std::int64_t along, std::int64_t down) {
        const std::int64_t x = text.rotated ? text.y + down : begin + along;
        const std::int64_t y = text.rotated ? begin - along : text.y + down;
        if (x >= 0 && x < scene.width && y >= 0 && y < scene.height)
            pixels[y * scene.width + x] = kInk;
    };
    for (std::size_t i = 0; i < text.text.size(); ++i) {
        const auto& lines = glyph(text.text[i]);
        for (std::int64_t y = 0; y < kGlyphHeight * kGlyphScale; ++y) {
            for (std::int64_t x = 0; x < kGlyphWidth * kGlyphScale; ++x) {
                const int line = lines[y / kGlyphScale];
                if ((line >> (kGlyphWidth - 1 - x / kGlyphScale) & 1) != 0)
                    dot(static_cast<std::int64_t>(i) * kLetter + x, y);
            }
        }
    }
}

}  // namespace

std::string png(const MaskData& data) {
    const Layout layout(data);
    const Scene& scene = layout.scene();
    std::vector<std::uint8_t> pixels(scene.width * scene.height, kPaper);
    for (const Rectangle& r : scene.rectangles) {
        for (std::int64_t y = r.y; y < r.y + r.height; ++y) {
            const auto first = pixels.begin() + y * scene.width + r.x;
            std::fill(first, first + r.width, static_cast<std::uint8_t>(r.colour));
        }
    }
    for (const Text& text : scene.texts) paint(text, scene, pixels);
    return png(pixels, scene.width, palette());
}

std::string svg(const MaskData& data) {
    const Layout layout(data);
    const Scene& scene = layout.scene();
    const std::vector<Colour> colours = palette();
    const auto colour = [&](int number) {
        const Colour& c = colours[number];
        return fmt::format("#{:02x}{:02x}{:02x}", c[0], c[1], c[2]);
    };
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
        "{1}\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"{2}\"/>\n"
        "<g shape-rendering=\"crispEdges\">\n",
        scene.width, scene.height, colour(kPaper));
    for (const Rectangle& r : scene.rectangles) {
        out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n",
                           r.x, r.y, r.width, r.height, colour(r.colour));
    }
    out += fmt::format("</g>\n<g fill=\"{}\" font-family=\"sans-serif\" font-size=\"16\">\n",
                       colour(kInk));
    constexpr const char* kAnchors[] = {"start", "middle", "end"};
    for (const Text& text : scene.texts) {
        const std::int64_t base = text.y + 7 * kGlyphScale;  // baseline of the letters
        const std::string place =
            text.rotated ? fmt::format("transform=\"translate({} {}) rotate(-90)\"", base, text.x)
                         : fmt::format("x=\"{}\" y=\"{}\"", text.x, base);
        out += fmt::format("<text {} text-anchor=\"{}\">{}</text>\n", place,
                           kAnchors[static_cast<std::size_t>(text.anchor)], text.text);
    }
    return out + "</g>\n</svg>\n";
}

}  // namespace tilewright::mask
