import unittest

from tree import CheckCase
import check_sizes


def lines_of(text):
    return {f.name: f.lines for f in check_sizes.functions(text)}


def parameters_of(text):
    return {f.name: f.parameters for f in check_sizes.functions(text)}


class Functions(unittest.TestCase):
    def test_plain_member_and_operator(self):
        text = """
namespace a::b {
struct alignas(64) S final : Base<void(int)> {
 public:
  S() = default;
  explicit S(int a, int b)
      : Base<void(int)>{a}, a_{a}, b_(b) {
    use();
  }
  bool operator==(const S&) const = default;
  S& operator+=(int n) { return *this; }
  void operator()(int, int) const noexcept(true) {}
  virtual int g() = 0;
  int a_{3}, b_ = {4};
};
int f(int x) {
  if (x) { return 1; }
  return 0;
}
}  // namespace a::b
"""
        self.assertEqual(lines_of(text), {"S": 4, "operator+=": 1, "operator()": 1, "f": 4})
        self.assertEqual(parameters_of(text), {"S": 2, "operator+=": 1, "operator()": 2, "f": 1})

    def test_templates_and_constraints(self):
        text = """
template <class T, int N = (3 > 2), class = std::enable_if_t<(N < 4)>>
  requires(sizeof(T) == 8) && requires(T t) { t.x(); }
auto foo(const std::map<int, T>& m, std::array<T, N> a = {}, void (*f)(int, int) = nullptr)
    -> decltype(a) {
  return a;
}
template <class T>
concept C = requires(T t) {
  { t.f(1, 2, 3, 4, 5, 6) } -> std::same_as<int>;
};
template <> int bar<int>(void) { return 0; }
"""
        self.assertEqual(lines_of(text), {"foo": 4, "bar": 1})
        self.assertEqual(parameters_of(text), {"foo": 3, "bar": 0})

    def test_lambdas_literals_and_local_types_do_not_confuse(self):
        text = """
const auto table = make({1, 2}, [](int a) { return a; });
int f(std::string s = "{(", char c = '{') {
  auto l = [&, n = 1](auto x) mutable -> int { return x + n; };
  struct Local { int get() const { return 1; } };
  call([&] { g(); }, R"x(}}})x", '}');  // }
  /* } */
  return l(1);
}
int g() { return 0; }
"""
        self.assertEqual(lines_of(text), {"get": 1, "f": 7, "g": 1})

    def test_preprocessor(self):
        text = """
#define OPEN {  \\
  {
MACRO(x) static void e() {}
#if A
void f(int a) {
#elif B
void f(int a, int b) {
#else
void f() {
#endif
}
#ifdef C
HWY_ATTR void g(int) { h(); }
#else
void g() {}
#endif
void i() ATTRIBUTE {}
"""
        found = [(f.name, f.parameters, f.lines) for f in check_sizes.functions(text)]
        self.assertEqual(
            found, [("e", 0, 1), ("f", 0, 3), ("g", 1, 1), ("g", 0, 1), ("i", 0, 1)])


class CheckSizes(CheckCase):
    check = staticmethod(check_sizes.check)

    @staticmethod
    def function(lines, parameters="", name="f"):
        return f"void {name}({parameters}) {{\n" + "  g();\n" * (lines - 2) + "}\n"

    def test_at_the_caps(self):
        five = "int a, int b, int c, int d, int e"
        self.assert_good({"src/base/a.cpp": self.function(60, five),
                          "src/base/copy_kernel.cpp": self.function(120),
                          "tests/unit/a.cpp": self.function(600)})

    def test_over_the_caps(self):
        six = "int a, int b, int c, int d, int e, std::map<int, int> f"
        self.assert_bad({"src/base/a.cpp": self.function(61)}, "a.cpp:1: f has 61 lines, cap 60")
        self.assert_bad({"tools/ubep/a_kernel.hpp": self.function(121)}, "121 lines, cap 120")
        self.assert_bad({"include/ubep/a.hpp": self.function(2, six)}, "6 parameters, cap 5")
        self.assert_bad({"tests/unit/a.cpp": "\n" * 601}, "the file has 601 lines, cap 600")


if __name__ == "__main__":
    unittest.main()
