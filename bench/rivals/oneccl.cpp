// Rivals over Intel's oneCCL, host memory. Built where CMake finds its C++ headers and library.
#include <cstdlib>
#include <oneapi/ccl.hpp>

#include "bench/rivals/collectives.hpp"
#include "bench/rivals/packages.hpp"

namespace ubep::rivals {
namespace {

// The fastest of those that were tried: libfabric without a launcher, its shared memory between
// ranks of one machine, work in the calling thread. That one never gives its core away, so with
// fewer cores than ranks a thread of oneCCL's works, which does. The user's own settings win.
void set_defaults(int ranks) {
  setenv("CCL_ATL_TRANSPORT", "ofi", 0);
  setenv("CCL_ATL_SHM", "1", 0);
  setenv("CCL_WORKER_OFFLOAD", ranks <= cores() ? "0" : "1", 0);
  setenv("CCL_YIELD", "sched_yield", 0);
  setenv("CCL_LOG_LEVEL", "error", 0);
}

std::shared_ptr<ccl::kvs> make_store(Group& group) {
  ccl::kvs::address_type address;
  const Notice notice(group, address.size());
  if (group.rank() != 0) {
    notice.read(address.data(), address.size());
    return ccl::create_kvs(address);
  }
  std::shared_ptr<ccl::kvs> store = ccl::create_main_kvs();
  address = store->get_address();
  notice.write(address.data(), address.size());
  return store;
}

class OneCcl final : public Collectives {
 public:
  explicit OneCcl(Group& group)
      : store_(make_store(group)),
        ranks_(ccl::create_communicator(group.size(), group.rank(), store_)) {}

  std::string name() const override { return "oneCCL"; }
  std::string all_to_all_text() const override {
    return "alltoallv: counts, pack, rows, and back; experts work on a segment per source";
  }
  std::string gather_text() const override {
    return "allgatherv of rows with their routing, reduce_scatter of the partial sums, padded to "
           "the most tokens";
  }
  // Each addition is cut off to bf16 on CPUs without AVX-512, in an order of its own.
  double tolerance() const override { return ranks_.size() / 128.0; }
  bool even() const override { return false; }

  void all_to_all(std::byte* send, const std::vector<std::size_t>& send_bytes, std::byte* receive,
                  const std::vector<std::size_t>& receive_bytes) override {
    ccl::alltoallv(send, send_bytes, receive, receive_bytes, ccl::datatype::uint8, ranks_).wait();
  }

  void all_gather(std::byte* own, std::byte* all, const std::vector<std::size_t>& bytes) override {
    const auto rank = static_cast<std::size_t>(ranks_.rank());
    ccl::allgatherv(own, bytes[rank], all, bytes, ccl::datatype::uint8, ranks_).wait();
  }

  const std::byte* reduce_scatter(std::byte* blocks, std::byte* own,
                                  std::size_t elements) override {
    ccl::reduce_scatter(blocks, own, elements, ccl::datatype::bfloat16, ccl::reduction::sum, ranks_)
        .wait();
    return own;
  }

 private:
  std::shared_ptr<ccl::kvs> store_;
  ccl::communicator ranks_;
};

std::shared_ptr<Collectives> oneccl;

}  // namespace

void start_oneccl(Group& group) {
  set_defaults(group.size());
  ccl::init();
  oneccl = std::make_shared<OneCcl>(group);
}

void stop_oneccl() { oneccl.reset(); }

void add_oneccl(std::vector<NamedWay>& ways, Group& group, const Shape& shape) {
  add_collectives(ways, group, shape, oneccl);
}

}  // namespace ubep::rivals
