/* Included before all of llama.cpp's C++ where the processor has AMX: CXXFLAGS="-include FILE".

   The `_tile_loadconfig` of some releases of GCC (12.2 is one) tells the optimiser that `ldtilecfg` reads
   eight bytes. It reads 64: what llama.cpp writes of its tile configuration after the eighth is dropped as
   never read, and the first pass over several rows of a quantised model ends in a segmentation fault. This one
   tells of all 64. */
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

static inline __attribute__((always_inline)) void paceline_tile_loadconfig(const void *config) {
    __asm__ volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])config));
}
#define _tile_loadconfig paceline_tile_loadconfig
#endif
