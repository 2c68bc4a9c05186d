// Variants of a pod, in its file:
//
//   "variants": [ { "name": "a", "weight": 2, "set": { "lane.issue_ns": 40, "tiers.1.latency_ns": 9
//   } } ]
//
// A path names a key of the file, or a new one in an object that is there; elements of a list are
// counted from 0.
#pragma once

#include <functional>
#include <vector>

#include "sim/json_reader.hpp"
#include "sim/pod.hpp"

namespace ubep::sim {

// None where the file lists none. `read` reads the pod of a file with other values. Throws
// ubep::Error(invalid_argument) that names file, line and key.
std::vector<PodVariant> read_variants(const JsonFile& file,
                                      const std::function<Pod(const JsonFile&)>& read);

}  // namespace ubep::sim
