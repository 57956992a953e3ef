#include <string.h>

#include "kvalet.h"

void kvalet_copy_pages(uint8_t *const *dst, const uint8_t *const *src, int64_t bytes, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        memcpy(dst[i], src[i], (size_t)bytes);
}

void kvalet_fill_nan(uint8_t *dst, int64_t bytes) {
    const uint16_t nan = 0x7e00;
    for (int64_t i = 0; i + 2 <= bytes; i += 2)
        memcpy(dst + i, &nan, 2);
}
