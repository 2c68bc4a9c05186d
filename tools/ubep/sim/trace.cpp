#include "tools/ubep/sim/trace.hpp"

#include <fmt/format.h>

#include <iterator>
#include <string_view>

#include "tools/ubep/breakdown.hpp"

namespace ubep::tools {
namespace {

// Viewers want numbers of threads that no two processes share, and keep 0 for themselves.
constexpr int kThreads = 100;
int process_of(int rank) { return (rank + 1) * kThreads; }

std::string us_text(sim::Time time) {
  return fmt::format("{}.{:06}", time / sim::kMicrosecond, time % sim::kMicrosecond);
}

class Writer {
 public:
  void name(std::string_view what, int process, int thread, const std::string& text) {
    begin();
    fmt::format_to(std::back_inserter(text_),
                   R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":"{}"}}}})", what,
                   process, thread, text);
  }
  struct Slice {
    std::string_view name;
    sim::Time begin;
    sim::Time end;
  };
  void slice(const Slice& s, std::string_view category, int process, int thread) {
    begin();
    fmt::format_to(std::back_inserter(text_),
                   R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{},"dur":{}}})",
                   s.name, category, process, thread, us_text(s.begin), us_text(s.end - s.begin));
  }
  std::string end() { return "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[" + text_ + "\n]}\n"; }

 private:
  void begin() { text_ += text_.empty() ? "\n" : ",\n"; }

  std::string text_;
};

}  // namespace

std::string trace_json(const sim::LayerResult& result, const std::vector<sim::LaneSlice>& slices) {
  Writer writer;
  for (std::size_t r = 0; r < result.ranks.size(); ++r) {
    const sim::RankTimes& rank = result.ranks[r];
    const int process = process_of(static_cast<int>(r));
    writer.name("process_name", process, process, fmt::format("rank {}", r));
    writer.name("thread_name", process, process, "operations");
    for (std::size_t lane = 0; lane < rank.dispatch_lanes.size(); ++lane) {
      writer.name("thread_name", process, process + 1 + static_cast<int>(lane),
                  fmt::format("lane {}", lane));
    }
    writer.slice({"dispatch", 0, rank.dispatch}, "operation", process, process);
    writer.slice({"first read", rank.dispatch, rank.first_read}, "operation", process, process);
    writer.slice({"combine", rank.combine_start, rank.combine}, "operation", process, process);
  }
  for (const sim::LaneSlice& s : slices) {
    const int process = process_of(s.rank);
    writer.slice({kActivityNames[static_cast<std::size_t>(s.activity)], s.begin, s.end}, "lane",
                 process, process + 1 + s.lane);
  }
  return writer.end();
}

}  // namespace ubep::tools
