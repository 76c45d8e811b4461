// One struct for each type: ggml's layout of a block. All else about a type follows from its constants.
//
// read() unpacks a block: codes q, scale d (and offset m) as F16 bits, and in blocks of 256 the scales s and
// offsets t of parts of 32 or 16 weights. If nibbles_at is not 0, codes are copied into a tile as stored:
// nibbles_at and fifths_at are their offsets, and read() skips them. A weight is d * s * (q - bias), or table[q]
// instead of q - bias, plus m (Q4_1, Q5_1) or minus m * t (the K types).
// Layouts: ggml-common.h of llama.cpp.
#pragma once
#include <cstring>

#include "path.h"

namespace paceline { namespace {

struct Codes {
    uint8_t q[256];
    uint16_t d, m;
    int8_t s[16];
    uint8_t t[16];
};

enum Planes { NIBBLES = 1, CRUMBS = 2, BITS = 4, BYTES = 8 };     // how codes are stored in a tile
enum Scales { ONE, PARTS_32, PARTS_16, EXPONENT };                 // d; d * s of 32; d * s of 16; a power of two
enum Offset { NONE, ADDED, SUBTRACTED };
enum Codebook { LINEAR, SIGNED, TABLE, SHIFTED_TABLE };            // SIGNED: q is a signed byte

inline uint16_t u16(const uint8_t *p) { uint16_t x; memcpy(&x, p, 2); return x; }
inline uint32_t u32(const uint8_t *p) { uint32_t x; memcpy(&x, p, 4); return x; }
inline void nibbles(const uint8_t *p, uint8_t *q) {
    for (int i = 0; i < 16; i++) { q[i] = p[i] & 15; q[i + 16] = p[i] >> 4; }
}

// The common layout: 32 weights with one scale.
struct Plain {
    static constexpr int block = 32, bias = 0, nibbles_at = 0, fifths_at = 0;
    static constexpr Scales scales = ONE;
    static constexpr Offset offset = NONE;
    static constexpr Codebook codebook = LINEAR;
};

struct Q4_0 : Plain {
    static constexpr int type = 2, bytes = 18, planes = NIBBLES, top = 15, bias = 8, nibbles_at = 2;
    static void read(const uint8_t *p, Codes &o) { o.d = u16(p); }
};
struct Q4_1 : Plain {
    static constexpr int type = 3, bytes = 20, planes = NIBBLES, top = 15, nibbles_at = 4;
    static constexpr Offset offset = ADDED;
    static void read(const uint8_t *p, Codes &o) { o.d = u16(p); o.m = u16(p + 2); }
};
struct Q5_0 : Plain {
    static constexpr int type = 6, bytes = 22, planes = NIBBLES | BITS, top = 31, bias = 16;
    static constexpr int nibbles_at = 6, fifths_at = 2;
    static void read(const uint8_t *p, Codes &o) { o.d = u16(p); }
};
struct Q5_1 : Plain {
    static constexpr int type = 7, bytes = 24, planes = NIBBLES | BITS, top = 31;
    static constexpr int nibbles_at = 8, fifths_at = 4;
    static constexpr Offset offset = ADDED;
    static void read(const uint8_t *p, Codes &o) { o.d = u16(p); o.m = u16(p + 2); }
};
struct Q8_0 : Plain {
    static constexpr int type = 8, bytes = 34, planes = BYTES, top = 127;
    static constexpr Codebook codebook = SIGNED;
    static void read(const uint8_t *p, Codes &o) { o.d = u16(p); memcpy(o.q, p + 2, 32); }
};
struct IQ4_NL : Plain {
    static constexpr int type = 20, bytes = 18, planes = NIBBLES, top = 127, nibbles_at = 2;
    static constexpr Codebook codebook = TABLE;
    static void read(const uint8_t *p, Codes &o) { o.d = u16(p); }
};
struct MXFP4 : Plain {  // 4-bit floats times two, shifted by 12 to be positive
    static constexpr int type = 39, bytes = 17, planes = NIBBLES, top = 24, bias = 12, nibbles_at = 1;
    static constexpr Scales scales = EXPONENT;
    static constexpr Codebook codebook = SHIFTED_TABLE;
    static void read(const uint8_t *p, Codes &o) { o.d = p[0]; }
};

// Blocks of 256 with scales of their parts.
struct Super {
    static constexpr int block = 256, bias = 0, nibbles_at = 0, fifths_at = 0;
    static constexpr Offset offset = NONE;
    static constexpr Codebook codebook = LINEAR;
};

struct Q2_K : Super {
    static constexpr int type = 10, bytes = 84, planes = CRUMBS, top = 3;
    static constexpr Scales scales = PARTS_16;
    static constexpr Offset offset = SUBTRACTED;
    static void read(const uint8_t *p, Codes &o) {
        o.d = u16(p + 80); o.m = u16(p + 82);
        for (int j = 0; j < 16; j++) { o.s[j] = p[j] & 15; o.t[j] = p[j] >> 4; }
        for (int n = 0; n < 8; n++)
            for (int i = 0; i < 32; i++) o.q[32 * n + i] = p[16 + n / 4 * 32 + i] >> (n % 4 * 2) & 3;
    }
};
struct Q3_K : Super {
    static constexpr int type = 11, bytes = 110, planes = CRUMBS | BITS, top = 7, bias = 4;
    static constexpr Scales scales = PARTS_16;
    static void read(const uint8_t *p, Codes &o) {
        o.d = u16(p + 108);
        const uint8_t *s = p + 96;
        for (int j = 0; j < 16; j++)
            o.s[j] = int8_t(((j < 8 ? s[j] & 15 : s[j - 8] >> 4) | (s[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32);
        for (int n = 0; n < 8; n++)
            for (int i = 0; i < 32; i++)
                o.q[32 * n + i] = (p[32 + n / 4 * 32 + i] >> (n % 4 * 2) & 3) | (p[i] >> n & 1) << 2;
    }
};
inline void scales_6_bits(const uint8_t *z, Codes &o) {
    for (int j = 0; j < 8; j++) {
        o.s[j] = int8_t(j < 4 ? z[j] & 63 : (z[j + 4] & 15) | z[j - 4] >> 6 << 4);
        o.t[j] = uint8_t(j < 4 ? z[j + 4] & 63 : z[j + 4] >> 4 | z[j] >> 6 << 4);
    }
}
struct Q4_K : Super {
    static constexpr int type = 12, bytes = 144, planes = NIBBLES, top = 15;
    static constexpr Scales scales = PARTS_32;
    static constexpr Offset offset = SUBTRACTED;
    static void read(const uint8_t *p, Codes &o) {
        o.d = u16(p); o.m = u16(p + 2); scales_6_bits(p + 4, o);
        for (int n = 0; n < 8; n++)
            for (int i = 0; i < 32; i++) o.q[32 * n + i] = p[16 + n / 2 * 32 + i] >> (n % 2 * 4) & 15;
    }
};
struct Q5_K : Super {
    static constexpr int type = 13, bytes = 176, planes = NIBBLES | BITS, top = 31;
    static constexpr Scales scales = PARTS_32;
    static constexpr Offset offset = SUBTRACTED;
    static void read(const uint8_t *p, Codes &o) {
        o.d = u16(p); o.m = u16(p + 2); scales_6_bits(p + 4, o);
        for (int n = 0; n < 8; n++)
            for (int i = 0; i < 32; i++)
                o.q[32 * n + i] = (p[48 + n / 2 * 32 + i] >> (n % 2 * 4) & 15) | (p[16 + i] >> n & 1) << 4;
    }
};
struct Q6_K : Super {
    static constexpr int type = 14, bytes = 210, planes = NIBBLES | CRUMBS, top = 63, bias = 32;
    static constexpr Scales scales = PARTS_16;
    static void read(const uint8_t *p, Codes &o) {
        o.d = u16(p + 208); memcpy(o.s, p + 192, 16);
        for (int n = 0; n < 8; n++) {
            const uint8_t *low = p + n / 4 * 64 + n % 2 * 32, *high = p + 128 + n / 4 * 32;
            for (int i = 0; i < 32; i++)
                o.q[32 * n + i] = (low[i] >> (n % 4 / 2 * 4) & 15) | (high[i] >> (n % 4 * 2) & 3) << 4;
        }
    }
};
struct IQ4_XS : Super {
    static constexpr int type = 23, bytes = 136, planes = NIBBLES, top = 127;
    static constexpr Scales scales = PARTS_32;
    static constexpr Codebook codebook = TABLE;
    static void read(const uint8_t *p, Codes &o) {
        o.d = u16(p);
        for (int j = 0; j < 8; j++) {
            o.s[j] = int8_t(((p[4 + j / 2] >> (j % 2 * 4) & 15) | (u16(p + 2) >> (2 * j) & 3) << 4) - 32);
            nibbles(p + 8 + 16 * j, o.q + 32 * j);
        }
    }
};

const int8_t NON_LINEAR[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t FLOAT_4_BITS[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};  // + 12

// Float weights: each lane loads one value of `bytes` bytes.
struct F32 { static constexpr int type = 0, bytes = 4; };
struct F16 { static constexpr int type = 1, bytes = 2; };
struct BF16 { static constexpr int type = 30, bytes = 2; };

} }  // namespace paceline
