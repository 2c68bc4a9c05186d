#include "tools/ubep/run.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "tools/ubep/exit_code.hpp"
#include "tools/ubep/forked.hpp"
#include "tools/ubep/input_error.hpp"
#include "tools/ubep/launched.hpp"
#include "tools/ubep/numbers.hpp"
#include "tools/ubep/safetensors.hpp"
#include "tools/ubep/stage.hpp"
#include "tools/ubep/stand_in.hpp"
#include "ubep/ubep.hpp"

namespace ubep::tools {
namespace {

constexpr std::uint64_t kMostRows = 1 << 24;
constexpr std::uint64_t kMostExperts = 65535;

// The whole input, checked.
struct Layer {
  std::uint64_t tokens = 0;
  std::uint64_t hidden = 0;
  std::uint64_t topk = 0;
  ubep::DType dtype = ubep::DType::bf16;
  FileDType file_dtype = FileDType::bf16;
  std::vector<std::byte> x;               // [tokens, hidden]
  std::vector<std::int32_t> topk_idx;     // [tokens, K]
  std::vector<float> topk_weights;        // [tokens, K]
  std::vector<std::int32_t> expert_rank;  // [E]
  std::vector<int> split;                 // [ranks] tokens of each
};

std::string shape_text(const TensorInfo& info) {
  return fmt::format("[{}]", fmt::join(info.shape, ", "));
}

// i32 or i64, range-checked.
std::vector<std::int32_t> read_ids(const SafetensorsFile& file, const std::string& name,
                                   std::int64_t low, std::int64_t high) {
  const TensorInfo& info = file.info(name);
  if (info.dtype != FileDType::i32 && info.dtype != FileDType::i64) {
    throw InputError(
        fmt::format("{}: dtype is {}, expected I32 or I64", name, dtype_name(info.dtype)));
  }
  const std::vector<std::byte> bytes = file.read(name);
  const std::size_t size = dtype_bytes(info.dtype);
  std::vector<std::int32_t> ids(bytes.size() / size);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::int64_t value = 0;
    if (size == 8) {
      std::memcpy(&value, bytes.data() + i * size, size);
    } else {
      std::int32_t narrow = 0;
      std::memcpy(&narrow, bytes.data() + i * size, size);
      value = narrow;
    }
    if (value < low || value > high) {
      throw InputError(
          fmt::format("{}: element {} is {}, expected {}..{}", name, i, value, low, high));
    }
    ids[i] = static_cast<std::int32_t>(value);
  }
  return ids;
}

void read_x(const SafetensorsFile& file, Layer& layer) {
  const TensorInfo& info = file.info("x");
  if (info.shape.size() != 2) {
    throw InputError("x: shape is " + shape_text(info) + ", expected [tokens, hidden]");
  }
  layer.tokens = info.shape[0];
  layer.hidden = info.shape[1];
  if (layer.hidden == 0 || layer.hidden > kMostRows || layer.tokens > kMostRows) {
    throw InputError(fmt::format("x: shape is {}, expected 0..{} tokens and 1..{} hidden",
                                 shape_text(info), kMostRows, kMostRows));
  }
  layer.file_dtype = info.dtype;
  switch (info.dtype) {
    case FileDType::bf16:
      layer.dtype = ubep::DType::bf16;
      break;
    case FileDType::f16:
      layer.dtype = ubep::DType::fp16;
      break;
    case FileDType::f32:
      layer.dtype = ubep::DType::fp32;
      break;
    default:
      throw InputError(
          fmt::format("x: dtype is {}, expected BF16, F16 or F32", dtype_name(info.dtype)));
  }
  layer.x = file.read("x");
}

void read_routing(const SafetensorsFile& file, int experts, Layer& layer) {
  const TensorInfo& idx = file.info("topk_idx");
  const TensorInfo& weights = file.info("topk_weights");
  if (idx.shape.size() != 2 || idx.shape[0] != layer.tokens || idx.shape[1] < 1 ||
      idx.shape[1] > 64) {
    throw InputError(
        fmt::format("topk_idx: shape is {}, expected [{}, 1..64]", shape_text(idx), layer.tokens));
  }
  if (weights.shape != idx.shape) {
    throw InputError(fmt::format("topk_weights: shape is {}, expected {} as topk_idx",
                                 shape_text(weights), shape_text(idx)));
  }
  if (weights.dtype != FileDType::f32) {
    throw InputError(
        fmt::format("topk_weights: dtype is {}, expected F32", dtype_name(weights.dtype)));
  }
  layer.topk = idx.shape[1];
  const std::int64_t most = experts > 0 ? experts : static_cast<std::int64_t>(kMostExperts);
  layer.topk_idx = read_ids(file, "topk_idx", -1, most - 1);
  const std::vector<std::byte> bytes = file.read("topk_weights");
  layer.topk_weights.resize(bytes.size() / sizeof(float));
  std::memcpy(layer.topk_weights.data(), bytes.data(), bytes.size());
}

void place_experts(const SafetensorsFile& file, const RunOptions& options, Layer& layer) {
  if (file.tensors().count("expert_rank") != 0) {
    layer.expert_rank = read_ids(file, "expert_rank", 0, options.ranks - 1);
    if (layer.expert_rank.empty() || layer.expert_rank.size() > kMostExperts) {
      throw InputError(fmt::format("expert_rank: {} elements, expected 1..{}",
                                   layer.expert_rank.size(), kMostExperts));
    }
    const auto experts = static_cast<int>(layer.expert_rank.size());
    if (options.experts > 0 && options.experts != experts) {
      throw InputError(
          fmt::format("--experts is {}, but expert_rank has {}", options.experts, experts));
    }
    read_routing(file, experts, layer);
    return;
  }
  read_routing(file, options.experts, layer);
  const auto largest = std::max_element(layer.topk_idx.begin(), layer.topk_idx.end());
  const int needed = largest == layer.topk_idx.end() ? 1 : std::max(*largest + 1, 1);
  layer.expert_rank = block_map(options.experts > 0 ? options.experts : needed, options.ranks);
}

void split_tokens(const RunOptions& options, Layer& layer) {
  const auto ranks = static_cast<std::uint64_t>(options.ranks);
  if (options.split.empty()) {
    for (std::uint64_t r = 0; r < ranks; ++r) {
      layer.split.push_back(
          static_cast<int>(layer.tokens / ranks + (r < layer.tokens % ranks ? 1 : 0)));
    }
    return;
  }
  layer.split = parse_numbers(options.split, "--split", 0, static_cast<int>(kMostRows));
  const std::uint64_t sum = std::accumulate(layer.split.begin(), layer.split.end(), 0ULL);
  if (layer.split.size() != ranks || sum != layer.tokens) {
    throw InputError(fmt::format("--split has {} numbers of sum {}, expected {} of sum {}",
                                 layer.split.size(), sum, ranks, layer.tokens));
  }
}

Layer read_layer(const RunOptions& options) {
  const SafetensorsFile file(options.input);
  Layer layer;
  read_x(file, layer);
  place_experts(file, options, layer);
  split_tokens(options, layer);
  return layer;
}

// One output row: identity, or x * (1 + e mod 8) / 8 rounded to the dtype.
void run_expert(bool scale, std::int32_t expert, const std::byte* in, const ubep::Rows& out,
                std::int64_t row) {
  if (!scale) {
    std::memcpy(out.row(row), in, static_cast<std::size_t>(out.row_bytes()));
    return;
  }
  const float factor = static_cast<float>(1 + expert % 8) / 8;
  for (std::int64_t i = 0; i < out.hidden; ++i) {
    store_element(out.row(row), i, out.dtype, load_element(in, i, out.dtype) * factor);
  }
}

void run_local_experts(bool scale, std::span<const std::int32_t> expert_rank, int rank,
                       Handle& handle) {
  const Received& received = handle.received();
  const ubep::Rows out = handle.expert_output();
  std::size_t local = 0;
  for (std::size_t e = 0; e < expert_rank.size(); ++e) {
    if (expert_rank[e] != rank) continue;
    for (std::int64_t i = 0; i < received.expert_counts[local]; ++i) {
      const std::int64_t place = received.expert_offsets[local] + i;
      const std::int64_t row = received.layout == Layout::expert_major
                                   ? place
                                   : received.expert_rows[static_cast<std::size_t>(place)];
      run_expert(scale, static_cast<std::int32_t>(e), received.row(row), out, place);
    }
    ++local;
  }
}

// What one rank does; `y` is for its own tokens.
void run_rank(const Bootstrap& bootstrap, const RunOptions& options, const Layer& layer,
              std::byte* y) {
  const auto rank = static_cast<std::size_t>(bootstrap.rank);
  const auto topk = static_cast<std::size_t>(layer.topk);
  const auto hidden = static_cast<std::int64_t>(layer.hidden);
  const auto first = static_cast<std::size_t>(
      std::accumulate(layer.split.begin(), layer.split.begin() + bootstrap.rank, 0LL));
  const auto count = static_cast<std::size_t>(layer.split[rank]);
  const std::size_t row_bytes = layer.hidden * size_of(layer.dtype);

  CommunicatorOptions create;
  create.num_experts = static_cast<int>(layer.expert_rank.size());
  create.expert_rank = layer.expert_rank;
  create.max_tokens = *std::max_element(layer.split.begin(), layer.split.end());
  create.max_hidden = static_cast<int>(hidden);
  create.max_dtype = layer.dtype;
  create.max_topk = static_cast<int>(topk);
  create.slots = 1;
  Communicator comm = Communicator::create(bootstrap, create);

  const bool by_expert = options.layout == name(Layout::expert_major);
  const DispatchOptions dispatch{.layout = by_expert ? Layout::expert_major : Layout::rank_major,
                                 .weighting = by_expert ? Weighting::kernel : Weighting::owner};
  Handle handle;
  must(comm.dispatch(
      {layer.x.data() + first * row_bytes, static_cast<std::int64_t>(count), hidden, layer.dtype},
      {std::span(layer.topk_idx).subspan(first * topk, count * topk),
       std::span(layer.topk_weights).subspan(first * topk, count * topk), static_cast<int>(topk)},
      dispatch, handle));
  run_local_experts(options.expert == "scale", layer.expert_rank, bootstrap.rank, handle);
  must(comm.combine(handle, {.out = {y, static_cast<std::int64_t>(count), hidden, layer.dtype}}));
}

std::size_t y_bytes(const Layer& layer, std::size_t rank) {
  return static_cast<std::size_t>(layer.split[rank]) * layer.hidden * size_of(layer.dtype);
}

// Each rank's y is its numbers on the stage.
std::size_t doubles_of(const Layer& layer) {
  std::size_t most = 0;
  for (std::size_t r = 0; r < layer.split.size(); ++r) most = std::max(most, y_bytes(layer, r));
  return most / sizeof(double) + 1;
}

std::byte* y_of(Stage& stage, int rank) {
  return reinterpret_cast<std::byte*>(stage.numbers(rank).data());
}

int run_one(const Bootstrap& bootstrap, const RunOptions& options, const Layer& layer,
            Stage& stage) {
  stage.announce(bootstrap.rank, getpid());
  try {
    run_rank(bootstrap, options, layer, y_of(stage, bootstrap.rank));
    return kOk;
  } catch (const Failed& failed) {
    stage.fail(failed.status);
  } catch (const std::exception& error) {
    stage.fail(kCheckFailed, error.what());
  }
  return stage.exit_code();
}

void write_sums(const RunOptions& options, const Layer& layer, Stage& stage) {
  std::vector<std::byte> y;
  y.reserve(layer.x.size());
  for (int r = 0; r < options.ranks; ++r) {
    const std::byte* from = y_of(stage, r);
    y.insert(y.end(), from, from + y_bytes(layer, static_cast<std::size_t>(r)));
  }
  write_safetensors(options.output, {{"y", layer.file_dtype, {layer.tokens, layer.hidden}, y}});
}

int run_forked(const RunOptions& options, const Layer& layer) {
  SharedStage stage(options.ranks, doubles_of(layer));
  const int code = run_on_stage(stage, options.ranks, "ubep run", [&](const Bootstrap& bootstrap) {
    return run_one(bootstrap, options, layer, stage);
  });
  if (code == kOk) write_sums(options, layer, stage);
  return code;
}

// As one rank of a launcher's; rank 0 writes the file.
int run_joined(const RunOptions& options, const Layer& layer) {
  const Bootstrap bootstrap = Bootstrap::from_environment();
  const auto stage = make_stage(bootstrap, doubles_of(layer));
  (void)run_one(bootstrap, options, layer, *stage);
  if (!stage->gather(bootstrap.rank)) {
    const int code = stage->exit_code();
    print_once([&] { fmt::print(stderr, "ubep run: {}\n", stage->text()); });
    return code;
  }
  if (bootstrap.rank == 0) write_sums(options, layer, *stage);
  return kOk;
}

}  // namespace

void add_run_options(CLI::App& app, RunOptions& o) {
  app.add_option("--input", o.input,
                 "safetensors: x [tokens, hidden], topk_idx [tokens, K], "
                 "topk_weights [tokens, K], optional expert_rank [E]")
      ->required();
  app.add_option("--output", o.output, "safetensors: y [tokens, hidden]")->required();
  app.add_option("--ranks", o.ranks, "ranks to fork, 1..64")->capture_default_str();
  app.add_option("--split", o.split, "tokens of each rank: a,b,c (default: even blocks)");
  app.add_option("--expert", o.expert, "identity, or scale: x * (1 + e mod 8) / 8")
      ->capture_default_str();
  app.add_option("--layout", o.layout, "expert_major (exact sums) or rank_major")
      ->capture_default_str();
  app.add_option("--experts", o.experts, "number of experts (0: as many as the file needs)");
}

int run_file(const RunOptions& options) {
  if (options.ranks < 1 || options.ranks > 64) {
    throw InputError(fmt::format("--ranks is {}, expected 1..64", options.ranks));
  }
  if (options.expert != "identity" && options.expert != "scale") {
    throw InputError("--expert: '" + options.expert + "' is not one of identity, scale");
  }
  if (options.layout != name(Layout::expert_major) && options.layout != name(Layout::rank_major)) {
    throw InputError("--layout: '" + options.layout + "' is not one of rank_major, expert_major");
  }
  if (options.experts < 0 || options.experts > static_cast<int>(kMostExperts)) {
    throw InputError(fmt::format("--experts is {}, expected 0..{}", options.experts, kMostExperts));
  }
  const Layer layer = read_layer(options);
  return under_launcher() ? run_joined(options, layer) : run_forked(options, layer);
}

}  // namespace ubep::tools
