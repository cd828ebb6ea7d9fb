#include "common/copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define LINE_BYTES 64u

#if defined(__SSE2__)
/* `to` is the beginning of a line. A line is written whole: parts of it would each go to memory. */
static void line_copy(uint8_t *to, const uint8_t *from)
{
    __m128i part[LINE_BYTES / sizeof(__m128i)];
    for (size_t i = 0; i < LINE_BYTES / sizeof(__m128i); i++)
        part[i] = _mm_loadu_si128((const __m128i *)from + i);
    for (size_t i = 0; i < LINE_BYTES / sizeof(__m128i); i++)
        _mm_stream_si128((__m128i *)to + i, part[i]);
}
#else
static void line_copy(uint8_t *to, const uint8_t *from)
{
    memcpy(to, from, LINE_BYTES);
}
#endif

void copy_past_cache(void *to, const void *from, size_t bytes)
{
    uint8_t *out = to;
    const uint8_t *in = from;
    size_t head = (LINE_BYTES - (uintptr_t)out % LINE_BYTES) % LINE_BYTES;
    if (head > bytes)
        head = bytes;
    memcpy(out, in, head);
    size_t at = head;
    for (; bytes - at >= LINE_BYTES; at += LINE_BYTES)
        line_copy(out + at, in + at);
    memcpy(out + at, in + at, bytes - at);
#if defined(__SSE2__)
    _mm_sfence(); /* such stores are in no order with later ones */
#endif
}
