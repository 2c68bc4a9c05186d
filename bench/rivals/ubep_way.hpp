// The library itself, as any caller would use it.
#pragma once

#include <memory>

#include "bench/rivals/rows.hpp"
#include "bench/rivals/way.hpp"

namespace ubep::rivals {

struct UbepChoice {
  Layout layout = Layout::rank_major;
  Path path = Path::automatic;
  bool in_input = true;  // activations are written into Communicator::input(), else into a tensor
};

// Collective. Its window is made for `shape`.
std::shared_ptr<Communicator> make_communicator(const Group& group, const Shape& shape,
                                                Store store);

class UbepWay final : public Way {
 public:
  UbepWay(const Group& group, const Shape& shape, std::shared_ptr<Communicator> comm,
          const UbepChoice& choice);

  Rows input() override;
  void dispatch(const tools::RankRouting& routing) override;
  void experts() override;
  void combine(const Rows& out) override;
  void step() override { (void)comm_->step(); }

 private:
  tools::Stage* stage_;
  std::shared_ptr<Communicator> comm_;
  UbepChoice choice_;
  int topk_;
  std::vector<float> scale_;  // of local experts
  Matrix x_;
  Rows input_;
  Handle handle_;
};

}  // namespace ubep::rivals
