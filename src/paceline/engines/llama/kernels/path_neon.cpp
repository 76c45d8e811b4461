#include "simd_neon.h"

namespace paceline {
const Path neon_path = path<Neon>("neon");
}
