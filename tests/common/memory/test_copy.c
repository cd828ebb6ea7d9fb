#include "common/memory/copy.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

#define ROOM 1024u
#define GUARD 0xa5u

static void past_cache(void *to, const void *from, size_t bytes)
{
    copy_past_cache(to, from, bytes);
    copy_fence();
}

static void (*const ways[])(void *, const void *, size_t) = {past_cache, copy_result,
                                                             copy_to_reader};

static void expect_copy(void (*copy)(void *, const void *, size_t), size_t to_at, size_t from_at,
                        size_t bytes)
{
    static _Alignas(64) uint8_t to[ROOM], from[ROOM];
    for (size_t i = 0; i < ROOM; i++)
        from[i] = (uint8_t)(i * 7 + i / 256);
    memset(to, GUARD, sizeof(to));
    copy(to + to_at, from + from_at, bytes);
    for (size_t i = 0; i < ROOM; i++) {
        bool copied = i >= to_at && i < to_at + bytes;
        uint8_t expected = copied ? from[from_at + i - to_at] : GUARD;
        if (to[i] != expected)
            ck_abort_msg("%zu bytes from %zu to %zu: byte %zu is %u, not %u", bytes, from_at, to_at,
                         i, to[i], expected);
    }
}

START_TEST(test_every_alignment_and_size)
{
    for (size_t to_at = 0; to_at < 66; to_at++)
        for (size_t bytes = 0; bytes <= 200; bytes++)
            expect_copy(ways[_i], to_at, (to_at * 13 + bytes) % 67, bytes);
}
END_TEST

START_TEST(test_nothing)
{
    uint8_t byte = GUARD;
    ways[_i](&byte, &byte, 0);
    ck_assert_uint_eq(byte, GUARD);
}
END_TEST

/* The data is just as large as its memory: the sanitizer finds a read or write past it. */
START_TEST(test_whole_memory)
{
    for (size_t bytes = 1; bytes < 5000; bytes += 97) {
        uint8_t *from = malloc(bytes);
        void *to; /* whole lines: any way may be taken */
        ck_assert_int_eq(posix_memalign(&to, COPY_LINE_BYTES, bytes), 0);
        memset(from, (int)bytes, bytes);
        ways[_i](to, from, bytes);
        ck_assert_int_eq(memcmp(to, from, bytes), 0);
        free(from);
        free(to);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("copy");
    TCase *c = tcase_create("ways");
    tcase_add_loop_test(c, test_every_alignment_and_size, 0, 3);
    tcase_add_loop_test(c, test_nothing, 0, 3);
    tcase_add_loop_test(c, test_whole_memory, 0, 3);
    suite_add_tcase(s, c);
    return suite_main(s);
}
