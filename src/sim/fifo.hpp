// A queue that costs nothing while it is empty: there is one for every pair of ranks.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace ubep::sim {

template <class T>
class Fifo {
 public:
  bool empty() const { return head_ == items_.size(); }
  std::size_t size() const { return items_.size() - head_; }
  T& front() { return items_[head_]; }
  const T& front() const { return items_[head_]; }
  T& back() { return items_.back(); }
  T& at(std::size_t i) { return items_[head_ + i]; }
  void push(T item) { items_.push_back(std::move(item)); }
  void pop() {
    ++head_;
    if (2 * head_ < items_.size() || (head_ < kKept && head_ < items_.size())) return;
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }

 private:
  static constexpr std::size_t kKept = 32;  // popped ones that are not worth a move
  std::vector<T> items_;
  std::size_t head_ = 0;
};

}  // namespace ubep::sim
