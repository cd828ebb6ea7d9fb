#include "common/memory/slab.h"

#include <stdalign.h>
#include <stdint.h>
#include <string.h>

#include "tests/lib/suite.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

START_TEST(objects_are_zeroed_aligned_and_apart)
{
    static const size_t sizes[] = {1, 8, 16, 17, 63, 200, 4097};
    for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        struct slab slab;
        slab_init(&slab, sizes[s]);
        uint8_t *objects[100];
        for (unsigned i = 0; i < 100; i++) {
            objects[i] = slab_get(&slab);
            EXPECT(objects[i]);
            EXPECT((uintptr_t)objects[i] % alignof(max_align_t) == 0);
            for (size_t at = 0; at < sizes[s]; at++)
                EXPECT(objects[i][at] == 0);
            memset(objects[i], (int)i + 1, sizes[s]);
        }
        ck_assert_uint_eq(slab.in_use, 100);
        for (unsigned i = 0; i < 100; i++) {
            EXPECT(objects[i][0] == i + 1 && objects[i][sizes[s] - 1] == i + 1);
            slab_put(&slab, objects[i]);
        }
        ck_assert_uint_eq(slab.in_use, 0);
        slab_clear(&slab);
    }
}
END_TEST

START_TEST(what_is_given_back_is_taken_again)
{
    struct slab slab;
    slab_init(&slab, 48);
    void *first = slab_get(&slab);
    memset(first, 0xff, 48);
    slab_put(&slab, first);
    uint8_t *again = slab_get(&slab);
    ck_assert_ptr_eq(again, first);
    for (int i = 0; i < 48; i++)
        EXPECT(again[i] == 0);
    slab_put(&slab, again);
    struct slab_block *blocks = slab.blocks;
    void *some[32];
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 32; i++)
            some[i] = slab_get(&slab);
        for (int i = 0; i < 32; i++)
            slab_put(&slab, some[(i * 7) % 32]);
    }
    ck_assert_ptr_eq(slab.blocks, blocks); /* no further memory in the steady state */
    slab_clear(&slab);
}
END_TEST

START_TEST(clearing_frees_objects_in_use)
{
    struct slab slab;
    slab_init(&slab, 128);
    for (int i = 0; i < 1000; i++)
        EXPECT(slab_get(&slab));
    ck_assert_uint_eq(slab.in_use, 1000);
    slab_clear(&slab);
    ck_assert_uint_eq(slab.in_use, 0);
    ck_assert_ptr_null(slab.blocks);
    /* and the slab can be used again */
    void *object = slab_get(&slab);
    ck_assert_ptr_nonnull(object);
    slab_put(&slab, object);
    slab_clear(&slab);
    slab_clear(&slab);
}
END_TEST

START_TEST(taken_and_given_back_in_any_order)
{
    struct slab slab;
    slab_init(&slab, sizeof(uint64_t));
    uint64_t *held[256] = {0};
    uint64_t random = 1;
    size_t count = 0;
    for (int step = 0; step < 20000; step++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        unsigned i = (unsigned)(random >> 40) % 256;
        if (held[i]) {
            EXPECT(*held[i] == i + 1000);
            slab_put(&slab, held[i]);
            held[i] = NULL;
            count--;
        } else {
            held[i] = slab_get(&slab);
            EXPECT(held[i] && *held[i] == 0);
            *held[i] = i + 1000;
            count++;
        }
        EXPECT(slab.in_use == count);
    }
    slab_clear(&slab);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("slab");
    TCase *tests = tcase_create("slab");
    tcase_add_test(tests, objects_are_zeroed_aligned_and_apart);
    tcase_add_test(tests, what_is_given_back_is_taken_again);
    tcase_add_test(tests, clearing_frees_objects_in_use);
    tcase_add_test(tests, taken_and_given_back_in_any_order);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
