// Marks what the shared library exports. Everything without the mark is hidden.
#pragma once

#define UBEP_API [[gnu::visibility("default")]]
