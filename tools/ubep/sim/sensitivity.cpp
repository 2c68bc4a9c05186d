#include "tools/ubep/sim/sensitivity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tools/ubep/sim/parameters.hpp"
#include "tools/ubep/sim/points.hpp"

namespace ubep::tools {
namespace {

using Json = nlohmann::ordered_json;
using Means = PathFigures::Means;

// Of one variant: the times of all paths, and then the reductions in %.
std::vector<double> values_of(const SimPoint& point, std::size_t variant) {
  std::vector<double> values;
  for (const PathFigures& path : point.paths) {
    values.push_back(path.variants[variant].dispatch);
    values.push_back(path.variants[variant].combine);
  }
  if (point.reductions.empty()) return values;
  const auto bsp = std::find_if(point.paths.begin(), point.paths.end(),
                                [](const auto& path) { return path.path == name(Path::bsp); });
  for (const PathFigures& path : point.paths) {
    if (&path == &*bsp) continue;
    for (double Means::*part : {&Means::dispatch, &Means::combine}) {
      values.push_back(100 * (1 - path.variants[variant].*part / bsp->variants[variant].*part));
    }
  }
  return values;
}

std::vector<std::string> metrics_of(const SimPoint& point) {
  std::vector<std::string> names;
  for (const PathFigures& path : point.paths) {
    names.push_back(path.path + " dispatch");
    names.push_back(path.path + " combine");
  }
  for (const Reduction& r : point.reductions) {
    names.push_back(r.path + " dispatch, less than bsp");
    names.push_back(r.path + " combine, less than bsp");
  }
  return names;
}

class Tornado {
 public:
  explicit Tornado(const Sensitivity& s) : s_(s) {}

  std::string svg(const std::string& title) {
    const auto metrics = static_cast<int>(s_.metrics.size());
    const int columns = std::min(metrics, 2);
    const int panel_rows = (metrics + columns - 1) / columns;
    const int width = columns * kPanelWidth + kMargin;
    const int height = 2 * kMargin + panel_rows * panel_height();
    add(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{}" height="{}" font-family="sans-serif" font-size="12">)",
        width, height);
    add(R"(<rect width="{}" height="{}" fill="white"/>)", width, height);
    text({kMargin, kMargin - 6}, "start", title);
    for (int m = 0; m < metrics; ++m) {
      panel(static_cast<std::size_t>(m), kMargin + m % columns * kPanelWidth,
            kMargin + m / columns * panel_height());
    }
    return text_ + "</svg>\n";
  }

 private:
  static constexpr int kMargin = 24;
  static constexpr int kPanelWidth = 480;
  static constexpr int kLine = 18;
  static constexpr int kBar = 13;
  static constexpr int kAxis = 290;  // where 0 is, within a panel
  static constexpr int kReach = 120;
  static constexpr std::size_t kMostRows = 10;
  struct Place {
    int x;
    int y;
  };

  int panel_height() const {
    return (static_cast<int>(std::min(kMostRows, s_.rows.size())) + 2) * kLine + kMargin;
  }
  template <class... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Values>(values)...);
    text_ += '\n';
  }
  void text(Place at, const char* anchor, std::string_view words) {
    add(R"(<text x="{}" y="{}" text-anchor="{}">{}</text>)", at.x, at.y, anchor, words);
  }

  static double reach(const Sensitivity::Row& row, std::size_t metric) {
    return std::max(std::abs(row.less[metric]), std::abs(row.more[metric]));
  }
  std::vector<const Sensitivity::Row*> largest(std::size_t metric) const {
    std::vector<const Sensitivity::Row*> rows;
    for (const Sensitivity::Row& row : s_.rows) rows.push_back(&row);
    std::stable_sort(rows.begin(), rows.end(), [&](const auto* a, const auto* b) {
      return reach(*a, metric) > reach(*b, metric);
    });
    rows.resize(std::min(rows.size(), kMostRows));
    return rows;
  }

  void panel(std::size_t metric, int x, int y) {
    const bool points = s_.metrics[metric].find(',') != std::string::npos;
    text({x, y + kLine}, "start",
         fmt::format("{}: {:.2f} {}, change in {}", s_.metrics[metric], s_.base[metric],
                     points ? "%" : "us", points ? "points" : "%"));
    const std::vector<const Sensitivity::Row*> rows = largest(metric);
    const double most = rows.empty() ? 0 : reach(*rows.front(), metric);
    int line = y + kLine + 8;
    for (const Sensitivity::Row* row : rows) {
      text({x + kAxis - kReach - 50, line + kBar - 2}, "end", row->parameter);
      bar({x + kAxis, line}, row->less[metric], most, "steelblue");
      bar({x + kAxis, line}, row->more[metric], most, "darkorange");
      line += kLine;
    }
    add(R"(<line x1="{0}" y1="{1}" x2="{0}" y2="{2}" stroke="black"/>)", x + kAxis, y + kLine + 4,
        line);
  }

  void bar(Place at, double change, double most, const char* colour) {
    if (most == 0) return;
    const auto length = static_cast<int>(std::lround(std::abs(change) / most * kReach));
    add(R"(<rect x="{}" y="{}" width="{}" height="{}" fill="{}" fill-opacity="0.8"/>)",
        change < 0 ? at.x - length : at.x, at.y, length, kBar, colour);
    if (length < kReach / 12) return;
    text({change < 0 ? at.x - length - 3 : at.x + length + 3, at.y + kBar - 2},
         change < 0 ? "end" : "start", fmt::format("{:+.1f}", change));
  }

  const Sensitivity& s_;
  std::string text_;
};

}  // namespace

Sensitivity measure_sensitivity(const SimPlan& plan) {
  SimPlan varied = plan;
  varied.variants = {plan.variants.front()};
  const std::vector<PodParameter> parameters = parameters_of(plan.variants.front().pod);
  for (const PodParameter& parameter : parameters) {
    for (const double factor : {kLess, kMore}) {
      varied.variants.push_back(plan.variants.front());
      parameter.scale(varied.variants.back().pod, factor);
    }
  }
  const SimGrid grid(varied);
  const SimPoint point = points_of(varied, grid).front();
  Sensitivity s{.metrics = metrics_of(point), .base = values_of(point, 0)};
  const std::size_t times = 2 * point.paths.size();
  const auto change = [&](std::size_t variant) {
    std::vector<double> values = values_of(point, variant);
    for (std::size_t m = 0; m < values.size(); ++m) {
      values[m] -= s.base[m];
      if (m < times) values[m] *= s.base[m] == 0 ? 0 : 100 / s.base[m];
    }
    return values;
  };
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    s.rows.push_back({parameters[p].name, change(2 * p + 1), change(2 * p + 2)});
  }
  return s;
}

void print_sensitivity(const Sensitivity& s, std::FILE* to) {
  fmt::print(to,
             "sensitivity: change with each parameter 20 % less / 20 % more; of times in %, of "
             "reductions in points\n");
  for (std::size_t m = 0; m < s.metrics.size(); ++m) {
    fmt::print(to, "  ({}) {}: {:.2f}\n", m + 1, s.metrics[m], s.base[m]);
  }
  fmt::print(to, "{:<22}", "parameter");
  for (std::size_t m = 0; m < s.metrics.size(); ++m) {
    fmt::print(to, " {:>15}", fmt::format("({})", m + 1));
  }
  fmt::print(to, "\n");
  for (const Sensitivity::Row& row : s.rows) {
    fmt::print(to, "{:<22}", row.parameter);
    for (std::size_t m = 0; m < s.metrics.size(); ++m) {
      fmt::print(to, " {:>15}", fmt::format("{:+.1f} / {:+.1f}", row.less[m], row.more[m]));
    }
    fmt::print(to, "\n");
  }
}

Json to_json(const Sensitivity& s) {
  Json json = {{"less", kLess}, {"more", kMore}, {"metrics", s.metrics}, {"base", s.base}};
  json["parameters"] = Json::array();
  for (const Sensitivity::Row& row : s.rows) {
    json["parameters"].push_back(
        {{"parameter", row.parameter}, {"less", row.less}, {"more", row.more}});
  }
  return json;
}

std::string tornado_svg(const Sensitivity& s, const std::string& title) {
  return Tornado(s).svg(title);
}

}  // namespace ubep::tools
