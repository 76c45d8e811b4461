#include "simd_neon.h"

namespace paceline {
constexpr Path neon_path = path<Neon>("neon");
}
