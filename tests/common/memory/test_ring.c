#include "common/memory/ring.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/lib/suite.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

static void *entry(uintptr_t number)
{
    return (void *)number;
}

START_TEST(first_in_first_out_and_full_at_its_capacity)
{
    struct ring ring;
    ck_assert_int_eq(ring_init(&ring, 8), 0);
    ck_assert_ptr_null(ring_pop(&ring));
    for (uintptr_t i = 1; i <= 8; i++)
        ck_assert(ring_push(&ring, entry(i)));
    ck_assert(!ring_push(&ring, entry(9)));
    for (uintptr_t i = 1; i <= 8; i++)
        ck_assert_ptr_eq(ring_pop(&ring), entry(i));
    ck_assert_ptr_null(ring_pop(&ring));
    ring_clear(&ring);
    ck_assert_ptr_null(ring.entries);
}
END_TEST

START_TEST(indices_wrap_round)
{
    struct ring ring;
    ck_assert_int_eq(ring_init(&ring, 4), 0);
    /* as after four thousand million entries */
    atomic_store(&ring.tail, UINT32_MAX - 5);
    atomic_store(&ring.head, UINT32_MAX - 5);
    for (uintptr_t i = 1; i < 100; i += 3) {
        for (uintptr_t k = 0; k < 3; k++)
            EXPECT(ring_push(&ring, entry(i + k)));
        for (uintptr_t k = 0; k < 3; k++)
            EXPECT(ring_pop(&ring) == entry(i + k));
        EXPECT(!ring_pop(&ring));
    }
    for (uintptr_t k = 1; k <= 4; k++)
        EXPECT(ring_push(&ring, entry(k)));
    EXPECT(!ring_push(&ring, entry(5)));
    ring_clear(&ring);
}
END_TEST

START_TEST(sleep_is_announced_withdrawn_and_seen_once)
{
    struct ring ring;
    ck_assert_int_eq(ring_init(&ring, 4), 0);
    ck_assert(!ring_consumer_sleeps(&ring));
    ck_assert(!ring_prepare_sleep(&ring)); /* nothing there: may sleep */
    ck_assert(ring_push(&ring, entry(1)));
    ck_assert(ring_consumer_sleeps(&ring));
    ck_assert(!ring_consumer_sleeps(&ring)); /* one doorbell is enough */

    ck_assert(ring_prepare_sleep(&ring)); /* something there: withdrawn */
    ck_assert(!ring_consumer_sleeps(&ring));
    ck_assert_ptr_eq(ring_pop(&ring), entry(1));

    ck_assert(!ring_prepare_sleep(&ring));
    ring_cancel_sleep(&ring);
    ck_assert(!ring_consumer_sleeps(&ring));
    ring_clear(&ring);
}
END_TEST

#define ENTRIES 60000u

static void *produce(void *argument)
{
    struct ring *ring = argument;
    for (uintptr_t i = 1; i <= ENTRIES; i++) {
        while (!ring_push(ring, entry(i)))
            sched_yield();
        if (ring_consumer_sleeps(ring))
            ring_wake(ring);
    }
    return NULL;
}

/* Every entry once and in order, with a consumer that sleeps on the ring whenever it is empty. A
 * lost wake-up shows as a test that does not end. */
START_TEST(a_thread_sleeps_on_the_ring)
{
    struct ring ring;
    ck_assert_int_eq(ring_init(&ring, 1u << _i), 0);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, produce, &ring), 0);
    for (uintptr_t i = 1; i <= ENTRIES; i++)
        EXPECT(ring_pop_wait(&ring) == entry(i));
    pthread_join(thread, NULL);
    ck_assert_ptr_null(ring_pop(&ring));
    ring_clear(&ring);
}
END_TEST

/* One entry at a time there and back: both sides sleep each time. */
struct pair {
    struct ring there, back;
};

static void *echo(void *argument)
{
    struct pair *pair = argument;
    for (;;) {
        void *it = ring_pop_wait(&pair->there);
        EXPECT(ring_push(&pair->back, it));
        if (ring_consumer_sleeps(&pair->back))
            ring_wake(&pair->back);
        if (it == entry(1))
            return NULL;
    }
}

START_TEST(two_threads_wake_each_other)
{
    struct pair pair;
    ck_assert_int_eq(ring_init(&pair.there, 2), 0);
    ck_assert_int_eq(ring_init(&pair.back, 2), 0);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, echo, &pair), 0);
    for (uintptr_t i = 3000; i >= 1; i--) {
        EXPECT(ring_push(&pair.there, entry(i)));
        if (ring_consumer_sleeps(&pair.there))
            ring_wake(&pair.there);
        EXPECT(ring_pop_wait(&pair.back) == entry(i));
    }
    pthread_join(thread, NULL);
    ring_clear(&pair.there);
    ring_clear(&pair.back);
}
END_TEST

/* The other way to sleep: on a descriptor that the producer rings. */
struct belled {
    struct ring ring;
    int bell;
};

static void *produce_with_bell(void *argument)
{
    struct belled *it = argument;
    for (uintptr_t i = 1; i <= ENTRIES; i++) {
        while (!ring_push(&it->ring, entry(i)))
            sched_yield();
        if (ring_consumer_sleeps(&it->ring)) {
            uint64_t one = 1;
            EXPECT(write(it->bell, &one, sizeof(one)) == sizeof(one));
        }
    }
    return NULL;
}

START_TEST(a_thread_sleeps_on_a_descriptor)
{
    struct belled it = {.bell = eventfd(0, EFD_CLOEXEC)};
    ck_assert_int_eq(ring_init(&it.ring, 64), 0);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, produce_with_bell, &it), 0);
    for (uintptr_t next = 1; next <= ENTRIES;) {
        void *got = ring_pop(&it.ring);
        if (got) {
            EXPECT(got == entry(next));
            next++;
        } else if (!ring_prepare_sleep(&it.ring)) {
            uint64_t count;
            EXPECT(read(it.bell, &count, sizeof(count)) == sizeof(count));
        }
    }
    pthread_join(thread, NULL);
    ring_clear(&it.ring);
    close(it.bell);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ring");
    TCase *tests = tcase_create("ring");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, first_in_first_out_and_full_at_its_capacity);
    tcase_add_test(tests, indices_wrap_round);
    tcase_add_test(tests, sleep_is_announced_withdrawn_and_seen_once);
    tcase_add_loop_test(tests, a_thread_sleeps_on_the_ring, 1, 8);
    tcase_add_test(tests, two_threads_wake_each_other);
    tcase_add_test(tests, a_thread_sleeps_on_a_descriptor);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
