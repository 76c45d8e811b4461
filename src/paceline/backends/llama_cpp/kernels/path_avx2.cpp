#include "simd_avx2.h"

namespace paceline {
constexpr Path avx2_path = path<Avx2>("avx2");
}
