import unittest

from tree import CheckCase
import check_layers

GOOD = {
    "include/ubep/types.hpp": "#include <cstdint>\n",
    "include/ubep/status.hpp": '#include "ubep/types.hpp"\n',
    "include/ubep/dispatch.hpp": "#include <ubep/types.hpp>\n",
    "src/base/math.hpp": "#include <ubep/types.hpp>\n",
    "src/memory/word.hpp": '#include "base/math.hpp"\n',
    "src/plan/plan.hpp": '#include "memory/word.hpp"\n',
    "src/plan/plan.cpp": '#include "plan.hpp"\n#include <fmt/format.h>\n',
    "src/fabric/shm/fabric.hpp": '#include "memory/word.hpp"\n',
    "src/engine/engine.hpp": '#include "fabric/shm/fabric.hpp"\n#include "plan/plan.hpp"\n',
    "src/api/dispatch.cpp": '#include <ubep/dispatch.hpp>\n#include "engine/engine.hpp"\n',
    "src/fabric/concept.hpp": '#include "base/math.hpp"\n',
    "src/sim/world.hpp": '#include "engine/engine.hpp"\n#include "fabric/concept.hpp"\n',
    "tools/ubep/args.hpp": "#include <ubep/dispatch.hpp>\n",
    "tools/ubep/sim/sim.cpp": '#include "sim/world.hpp"\n',
    "tools/ubep/main.cpp": '#include "tools/ubep/args.hpp"\n#include "args.hpp"\n',
    "examples/one/main.cpp": "#include <ubep/dispatch.hpp>\n",
    "tests/support/x.hpp": '#include "memory/word.hpp"\n',
    "tests/unit/a.cpp": '#include "support/x.hpp"\n#include "tools/ubep/args.hpp"\n',
}


class CheckLayers(CheckCase):
    check = staticmethod(check_layers.check)

    def bad(self, path, include, *parts):
        tree = dict(GOOD)
        tree[path] = tree.get(path, "") + f"\n#include {include}\n"
        self.assert_bad(tree, path, *parts)

    def test_good_tree(self):
        self.assert_good(GOOD)

    def test_upward(self):
        self.bad("src/base/math.hpp", '"memory/word.hpp"', "base must not depend on memory")
        self.bad("src/fabric/shm/fabric.hpp", '"engine/engine.hpp"', "must not depend on engine")

    def test_the_three_do_not_include_one_another(self):
        self.bad("src/plan/plan.hpp", '"fabric/shm/fabric.hpp"', "plan must not depend on fabric")
        self.bad("src/fabric/shm/fabric.hpp", "<plan/plan.hpp>", "fabric must not depend on plan")

    def test_relative_path_does_not_hide(self):
        self.bad("src/base/math.hpp", '"../memory/word.hpp"', "base must not depend on memory")

    def test_public_headers(self):
        self.bad("src/plan/plan.hpp", "<ubep/dispatch.hpp>", "only api includes")
        self.bad("include/ubep/dispatch.hpp", '"base/math.hpp"', "public headers only")
        self.bad("include/ubep/types.hpp", "<ubep/dispatch.hpp>", "vocabulary headers only")

    def test_clients(self):
        self.bad("tools/ubep/main.cpp", '"plan/plan.hpp"', "tools includes <ubep/...>")
        self.bad("tools/ubep/main.cpp", '"src/plan/plan.hpp"', "tools includes <ubep/...>")
        self.bad("examples/one/main.cpp", '"tools/ubep/args.hpp"', "examples includes <ubep/...>")

    def test_the_simulator_stands_beside_api(self):
        self.bad("src/sim/world.hpp", '"fabric/shm/fabric.hpp"', "sim must not depend on a real")
        self.bad("src/sim/world.hpp", "<ubep/communicator.hpp>", "not in the tree")
        self.bad("src/api/dispatch.cpp", '"sim/world.hpp"', "api must not depend on sim")
        self.bad("src/engine/engine.hpp", '"sim/world.hpp"', "engine must not depend on sim")
        self.bad("examples/one/main.cpp", '"sim/world.hpp"', "examples includes <ubep/...>")

    def test_nobody_includes_tests(self):
        for path in ("src/api/dispatch.cpp", "tools/ubep/main.cpp", "bench/micro/a.cpp"):
            self.bad(path, '"support/x.hpp"', "only tests may include tests")

    def test_missing_file(self):
        self.bad("src/plan/plan.cpp", '"plam.hpp"', "not in the tree")
        self.bad("examples/one/main.cpp", "<ubep/nothing.hpp>", "not in the tree")

    def test_unknown_layer(self):
        self.assert_bad({"src/utils/a.hpp": ""}, "not in a folder of a known layer")

    def test_commented_include(self):
        tree = {**GOOD, "src/base/b.hpp": '// #include "memory/word.hpp"\n/*\n#include "x"\n*/\n'}
        self.assert_good(tree)


if __name__ == "__main__":
    unittest.main()
