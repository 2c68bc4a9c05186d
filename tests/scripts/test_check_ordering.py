import unittest

from tree import CheckCase
import check_ordering

CALLS = """
// publishes: the record; the other side is acquire_record().
word.store_release(e);

Status f() {
  return fabric->load_flag(q, pub);  // acquires: what q wrote before pub
}
bool g() {
  /* claims: the slot,
     against try_release() */
  const bool mine =
      slot.compare_exchange_strong(a, b);
  store_fence();  // orders: NT rows before the flag
  return mine;
}
"""
DECLARATIONS = """
class Fabric {
 public:
  void order(Ordering before);
  [[nodiscard]] std::uint64_t load_flag(int rank, Word word) const;
  static inline std::span<std::byte> try_claim(int rank) { return {}; }
};
Status Fabric::store_flag(int rank) { return ok; }
template <class T> T& Array<T>::load_acquire(int i) { return data[i]; }
int reorder(int order) { return order; }
template <class F>
concept IsFabric = requires(F f) {
  { f.load_flag(0) } -> std::same_as<int>;
  f.order(1);
};
"""


class CheckOrdering(CheckCase):
    check = staticmethod(check_ordering.check)

    def bad_call(self, text, *parts):
        self.assert_bad({"src/engine/a.cpp": text}, "src/engine/a.cpp", *parts)

    def test_commented_calls(self):
        self.assert_good({"src/engine/a.cpp": CALLS})

    def test_declarations_need_no_comment(self):
        self.assert_good({"src/fabric/a.hpp": DECLARATIONS})

    def test_calls_without_comment(self):
        for call in ("word.store_release(e);", "p->load_acquire();", "return load_flag(p, w);",
                     "x = f.fetch_add_acq_rel(1);", "if (slot.try_claim()) {}", "store_fence();",
                     "fabric::order(before_flag);", "a.compare_exchange_weak(b, c);",
                     "while (load_flag(p, w) < e) {}", "this->fabric_.order(x);",
                     "return f.template load_flag<int>(p) + load_flag(q, w);"):
            self.bad_call(f"void f() {{\n  {call}\n}}\n", ":2:", "needs a comment")

    def test_comment_too_far_or_wrong(self):
        self.bad_call("// acquires: x\n\n\n\n\nauto v = w.load_acquire();\n", ":6:")
        self.bad_call("// loads x\nauto v = w.load_acquire();\n", ":2:")
        self.bad_call('auto v = w.load_acquire("acquires: x");\n', ":1:")

    def test_call_in_comment_or_string(self):
        self.assert_good({"src/engine/a.cpp": '// w.load_acquire()\nauto s = "order(x)";\n'})

    def test_raw_orders_only_in_memory(self):
        for text in ("std::memory_order_acquire", "std::memory_order::relaxed", "_mm_sfence()",
                     "std::atomic_thread_fence(x)", "__atomic_load_n(p, 0)"):
            self.assert_good({"src/memory/word.hpp": f"auto a = {text};\n"})
            self.assert_bad({"src/plan/a.hpp": f"auto a = {text};\n"}, "belongs in src/memory")
            self.assert_bad({"tools/ubep/a.hpp": f"auto a = {text};\n"}, "belongs in src/memory")

    def test_memory_needs_no_marker(self):
        self.assert_good({"src/memory/word.cpp": "int f() { return w.load_acquire(); }\n"})


if __name__ == "__main__":
    unittest.main()
