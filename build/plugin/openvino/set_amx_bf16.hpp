// bf16 on CPUs with AMX: products are of tiles, what surrounds them is AVX512-BF16.
#pragma once

#include "native_bf16.hpp"
#include "tiles.hpp"
#include "looked_up.hpp"
