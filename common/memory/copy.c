#include "common/memory/copy.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__) && __has_include(<sys/platform/x86.h>)
#include <sys/platform/x86.h>
#endif

#if defined(__SSE2__)
#include <emmintrin.h>

/* `to` is the beginning of a line. A line is written whole: parts of it would each go to memory. */
static void line_copy(uint8_t *to, const uint8_t *from)
{
    __m128i part[COPY_LINE_BYTES / sizeof(__m128i)];
    for (size_t i = 0; i < COPY_LINE_BYTES / sizeof(__m128i); i++)
        part[i] = _mm_loadu_si128((const __m128i *)from + i);
    for (size_t i = 0; i < COPY_LINE_BYTES / sizeof(__m128i); i++)
        _mm_stream_si128((__m128i *)to + i, part[i]);
}

void copy_fence(void)
{
    _mm_sfence();
}
#else
static void line_copy(uint8_t *to, const uint8_t *from)
{
    memcpy(to, from, COPY_LINE_BYTES);
}

void copy_fence(void)
{
}
#endif

/* Less than that is no sooner there by string moves. */
#define STRING_BYTES 2048u

/* Copy with a string move; false: nothing was copied. AMD's string moves are slow where the two
 * ends lie alike in their pages (glibc's bug 30994). A build with a sanitizer uses memcpy, since
 * the sanitizer would not see a string move. */
static bool string_move(void *to, const void *from, size_t bytes)
{
#if defined(__x86_64__) && defined(CPU_FEATURE_ACTIVE) && !defined(SHOAL_SANITIZED)
    if (CPU_FEATURE_ACTIVE(FSRM) && __builtin_cpu_is("intel")) {
        __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
        return true;
    }
#else
    (void)to, (void)from, (void)bytes;
#endif
    return false;
}

void copy_to_reader(void *to, const void *from, size_t bytes)
{
    bool suits = bytes >= STRING_BYTES && (uintptr_t)to % COPY_LINE_BYTES == 0;
    if (!suits || !string_move(to, from, bytes))
        memcpy(to, from, bytes);
}

static bool memcpy_moves_strings(void)
{
#ifdef CPU_FEATURE_ACTIVE
    return CPU_FEATURE_ACTIVE(ERMS);
#else
    return false;
#endif
}

void copy_past_cache(void *to, const void *from, size_t bytes)
{
    uint8_t *out = to;
    const uint8_t *in = from;
    size_t head = (COPY_LINE_BYTES - (uintptr_t)out % COPY_LINE_BYTES) % COPY_LINE_BYTES;
    if (head > bytes)
        head = bytes;
    memcpy(out, in, head);
    size_t at = head;
    for (; bytes - at >= COPY_LINE_BYTES; at += COPY_LINE_BYTES)
        line_copy(out + at, in + at);
    memcpy(out + at, in + at, bytes - at);
}

void copy_result(void *to, const void *from, size_t bytes)
{
    if (memcpy_moves_strings()) {
        memcpy(to, from, bytes);
        return;
    }
    copy_past_cache(to, from, bytes);
    copy_fence();
}
