// Everything a user may include. To read: types, status, bootstrap, communicator, dispatch, handle,
// combine, quantization, stats, trace, inspect.
#pragma once

#include "ubep/bootstrap.hpp"     // IWYU pragma: export
#include "ubep/combine.hpp"       // IWYU pragma: export
#include "ubep/communicator.hpp"  // IWYU pragma: export
#include "ubep/dispatch.hpp"      // IWYU pragma: export
#include "ubep/export.hpp"        // IWYU pragma: export
#include "ubep/handle.hpp"        // IWYU pragma: export
#include "ubep/inspect.hpp"       // IWYU pragma: export
#include "ubep/quantization.hpp"  // IWYU pragma: export
#include "ubep/stats.hpp"         // IWYU pragma: export
#include "ubep/status.hpp"        // IWYU pragma: export
#include "ubep/trace.hpp"         // IWYU pragma: export
#include "ubep/types.hpp"         // IWYU pragma: export
#include "ubep/version.hpp"       // IWYU pragma: export
