// Rivals over PyTorch's gloo, by its C++ process group. Built where CMake finds Torch and gloo's
// headers, which the wheel lacks.
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "bench/rivals/collectives.hpp"
#include "bench/rivals/packages.hpp"

namespace ubep::rivals {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

at::Tensor tensor(std::byte* data, std::size_t elements, at::ScalarType type) {
  return at::from_blob(data, {static_cast<std::int64_t>(elements)}, type);
}

// Where ranks are on several hosts: at the address of rank 0, beside the library's port.
c10::intrusive_ptr<c10d::TCPStore> make_store_for_hosts(const Group& group) {
  const Bootstrap& bootstrap = group.bootstrap();
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(bootstrap.port + 1);
  options.isServer = group.rank() == 0;
  options.numWorkers = static_cast<std::size_t>(group.size());
  return c10::make_intrusive<c10d::TCPStore>(bootstrap.address, options);
}

c10::intrusive_ptr<c10d::TCPStore> make_store(Group& group) {
  if (group.spans_hosts()) return make_store_for_hosts(group);
  const Notice notice(group, sizeof(std::uint16_t));
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.waitWorkers = false;
  options.isServer = group.rank() == 0;
  if (!options.isServer) notice.read(&options.port, sizeof(options.port));
  auto store = c10::make_intrusive<c10d::TCPStore>(kLoopback, options);
  const std::uint16_t port = store->getPort();
  if (options.isServer) notice.write(&port, sizeof(port));
  return store;
}

class Gloo final : public Collectives {
 public:
  explicit Gloo(Group& group) {
    at::set_num_threads(1);
    const auto options = c10d::ProcessGroupGloo::Options::create();
    options->devices.push_back(group.spans_hosts()
                                   ? c10d::ProcessGroupGloo::createDefaultDevice()
                                   : c10d::ProcessGroupGloo::createDeviceForHostname(kLoopback));
    ranks_ = c10::make_intrusive<c10d::ProcessGroupGloo>(make_store(group), group.rank(),
                                                         group.size(), options);
  }

  std::string name() const override { return "gloo"; }
  std::string all_to_all_text() const override {
    return "PyTorch's all_to_all_single over gloo: counts, pack, rows, and back; experts work on a "
           "segment per source";
  }
  std::string gather_text() const override {
    return "PyTorch's all_gather_into_tensor over gloo, rows with their routing, padded to the "
           "most tokens; all_reduce of the partial sums, slice (what its reduce_scatter_tensor "
           "does, without that one's copy)";
  }
  // It rounds each addition to the nearest bf16; the order is that of the ranks only for two.
  double tolerance() const override {
    return ranks_->getSize() > 2 ? ranks_->getSize() / 256.0 : 0;
  }
  bool even() const override { return true; }

  void all_to_all(std::byte* send, const std::vector<std::size_t>& send_bytes, std::byte* receive,
                  const std::vector<std::size_t>& receive_bytes) override {
    std::vector<std::int64_t> from(send_bytes.begin(), send_bytes.end());
    std::vector<std::int64_t> to(receive_bytes.begin(), receive_bytes.end());
    at::Tensor in = tensor(send, total(send_bytes), at::kByte);
    at::Tensor out = tensor(receive, total(receive_bytes), at::kByte);
    ranks_->alltoall_base(out, in, to, from)->wait();
  }

  void all_gather(std::byte* own, std::byte* all, const std::vector<std::size_t>& bytes) override {
    at::Tensor in = tensor(own, bytes[0], at::kByte);
    at::Tensor out = tensor(all, total(bytes), at::kByte);
    ranks_->_allgather_base(out, in)->wait();
  }

  const std::byte* reduce_scatter(std::byte* blocks, std::byte* /*own*/,
                                  std::size_t elements) override {
    const auto size = static_cast<std::size_t>(ranks_->getSize());
    std::vector<at::Tensor> sums = {tensor(blocks, size * elements, at::kBFloat16)};
    ranks_->allreduce(sums)->wait();
    return blocks + static_cast<std::size_t>(ranks_->getRank()) * elements * 2;
  }

 private:
  static std::size_t total(const std::vector<std::size_t>& bytes) {
    std::size_t sum = 0;
    for (std::size_t b : bytes) sum += b;
    return sum;
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> ranks_;
};

std::shared_ptr<Collectives> gloo;

}  // namespace

void start_gloo(Group& group) { gloo = std::make_shared<Gloo>(group); }

void stop_gloo() { gloo.reset(); }

void add_gloo(std::vector<NamedWay>& ways, Group& group, const Shape& shape) {
  add_collectives(ways, group, shape, gloo);
}

}  // namespace ubep::rivals
