#include "common/format/arena.h"

#include "tests/lib/suite.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES (2u << 20)
#define ENTRIES 16u

struct pair {
    struct arena worker, daemon;
    int fd;
};

static void pair_create(struct pair *pair)
{
    struct error error;
    ck_assert_int_eq(arena_create(&pair->worker, BYTES, ENTRIES, &pair->fd, &error), 0);
    ck_assert_int_eq(arena_attach(&pair->daemon, pair->fd, BYTES, &error), 0);
}

static void pair_destroy(struct pair *pair)
{
    arena_unmap(&pair->worker);
    arena_unmap(&pair->daemon);
    close(pair->fd);
}

START_TEST(test_create_and_attach)
{
    struct pair pair;
    pair_create(&pair);
    ck_assert_uint_eq(pair.worker.total_bytes, BYTES);
    ck_assert_uint_eq(pair.daemon.data_offset, pair.worker.data_offset);
    ck_assert_uint_eq(pair.daemon.submission_mask, ENTRIES - 1);
    ck_assert_uint_eq(pair.daemon.completion_mask, 2 * ENTRIES - 1);
    strcpy((char *)pair.worker.base + pair.worker.data_offset, "seen");
    ck_assert_str_eq((char *)pair.daemon.base + pair.daemon.data_offset, "seen");
    ck_assert_int_lt(ftruncate(pair.fd, 4096), 0);
    ck_assert_int_lt(ftruncate(pair.fd, 2 * BYTES), 0);
    pair_destroy(&pair);
    ck_assert_ptr_null(pair.worker.base);
}
END_TEST

START_TEST(test_size_is_rounded_up_to_pages)
{
    struct arena arena;
    int fd;
    ck_assert_int_eq(arena_create(&arena, ARENA_LEAST_BYTES + 1, ENTRIES, &fd, NULL), 0);
    ck_assert_uint_eq(arena.total_bytes % (uint64_t)sysconf(_SC_PAGESIZE), 0);
    ck_assert_uint_gt(arena.total_bytes, ARENA_LEAST_BYTES);
    arena_unmap(&arena);
    close(fd);
}
END_TEST

START_TEST(test_create_refuses_bad_sizes)
{
    struct arena arena = {0};
    struct error error;
    int fd = -7;
    const uint32_t entries[] = {0, 8, 17, 65536, 131072, 0x80000000u};
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
        ck_assert_int_eq(arena_create(&arena, BYTES, entries[i], &fd, &error), ERR_INVALID);
    ck_assert_int_eq(arena_create(&arena, 4096, ENTRIES, &fd, &error), ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "4096"));
    ck_assert_int_eq(arena_create(&arena, UINT64_MAX, ENTRIES, &fd, &error), ERR_INVALID);
    ck_assert_int_eq(arena_create(&arena, ARENA_LEAST_BYTES, 32768, &fd, &error), ERR_INVALID);
    ck_assert_int_eq(fd, -7);
    ck_assert_ptr_null(arena.base);
}
END_TEST

START_TEST(test_attach_refuses_what_is_not_sealed)
{
    struct arena arena;
    struct error error;
    int fd = memfd_create("test", MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, BYTES), 0);
    ck_assert_int_eq(arena_attach(&arena, fd, BYTES, &error), ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(error.text, "seal"));
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    ck_assert_int_eq(arena_attach(&arena, fd, BYTES, &error), ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(error.text, "magic"));
    ck_assert_int_eq(arena_attach(&arena, fd, BYTES - 1, &error), ERR_MEMORY);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
    ck_assert_int_eq(arena_attach(&arena, fd, BYTES, &error), ERR_PROTOCOL);
    close(fd);
    ck_assert_int_eq(arena_attach(&arena, fd, BYTES, &error), ERR_SYSTEM);

    fd = memfd_create("test", MFD_ALLOW_SEALING);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    ck_assert_int_eq(arena_attach(&arena, fd, BYTES, &error), ERR_PROTOCOL);
    close(fd);
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(arena_attach(&arena, ends[0], BYTES, &error), ERR_PROTOCOL);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

START_TEST(test_the_daemon_says_that_it_traces)
{
    struct pair pair;
    pair_create(&pair);
    ck_assert(!arena_tracing(&pair.worker));
    arena_set_tracing(&pair.daemon, true);
    ck_assert(arena_tracing(&pair.worker));
    arena_set_tracing(&pair.daemon, false);
    ck_assert(!arena_tracing(&pair.worker));
    pair_destroy(&pair);
}
END_TEST

/* Spoil one field of a good header at a time. */
START_TEST(test_attach_refuses_a_bad_header)
{
    struct pair pair;
    pair_create(&pair);
    struct arena_header *header = (struct arena_header *)pair.worker.base;
    struct arena arena;
    struct error error;
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        __typeof__(header->field) old = header->field;                                             \
        header->field = (value);                                                                   \
        error.text[0] = '\0';                                                                      \
        ck_assert_int_eq(arena_attach(&arena, pair.fd, BYTES, &error), ERR_PROTOCOL);              \
        ck_assert_str_ne(error.text, "");                                                          \
        header->field = old;                                                                       \
    } while (0)
    REFUSED(magic, 1);
    REFUSED(version, ARENA_VERSION - 1); /* whose rings may begin where the header now goes on */
    REFUSED(version, ARENA_VERSION + 1);
    REFUSED(zero, 1);
    REFUSED(total_bytes, BYTES + 4096);
    REFUSED(total_bytes, BYTES - 4096);
    REFUSED(submission_entries, 0);
    REFUSED(submission_entries, 15);
    REFUSED(submission_entries, 32);
    REFUSED(submission_entries, 131072);
    REFUSED(submission_entries, 0x80000000u);
    REFUSED(completion_entries, 16);
    REFUSED(completion_entries, 0);
    REFUSED(completion_entries, 65536);
    REFUSED(submission_offset, 0);
    REFUSED(submission_offset, 4100);
    REFUSED(submission_offset, UINT64_MAX - 63);
    REFUSED(submission_offset, 8192);
    REFUSED(completion_offset, 4096);
    REFUSED(completion_offset, UINT64_MAX - 63);
    REFUSED(data_offset, 4096);
    REFUSED(data_offset, 8200);
    REFUSED(data_offset, BYTES);
    REFUSED(data_offset, UINT64_MAX - 63);
#undef REFUSED
    ck_assert_int_eq(arena_attach(&arena, pair.fd, BYTES, &error), 0);
    arena_unmap(&arena);
    pair_destroy(&pair);
}
END_TEST

START_TEST(test_random_headers_never_crash)
{
    uint8_t *memory = aligned_alloc(4096, BYTES);
    uint64_t state = 88172645463325252ull;
    memset(memory, 0, BYTES);
    struct arena arena;
    ck_assert_int_eq(arena_format(&arena, memory, BYTES, ENTRIES, NULL), 0);
    uint8_t good[sizeof(struct arena_header)];
    memcpy(good, memory, sizeof(good));
    int accepted = 0;
    for (int round = 0; round < 20000; round++) {
        memcpy(memory, good, sizeof(good));
        for (int i = 0; i < 2; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            memory[state % 64] = (uint8_t)(state >> 32);
        }
        if (arena_attach_memory(&arena, memory, BYTES, NULL) == 0) {
            /* Whatever was accepted lies inside. */
            struct arena_submission submission = {.type = ARENA_SUBMIT};
            for (uint32_t i = 0; i <= arena.submission_mask; i++)
                memcpy(&arena.submissions[i], &submission, sizeof(submission));
            memset(arena.completions, 0, (arena.completion_mask + 1) * sizeof(*arena.completions));
            ck_assert_uint_lt(arena.data_offset, BYTES);
            accepted++;
        }
    }
    ck_assert_int_gt(accepted, 0);
    free(memory);
}
END_TEST

START_TEST(test_submission_ring_fills_and_wraps)
{
    struct pair pair;
    pair_create(&pair);
    struct arena_submission in = {.type = ARENA_SUBMIT}, out;
    uint64_t pushed = 0, popped = 0;
    ck_assert_int_eq(arena_pop_submission(&pair.daemon, &out), 0);
    for (int round = 0; round < 50; round++) {
        uint32_t room = arena_submission_room(&pair.worker);
        ck_assert_uint_eq(room, ENTRIES - (pushed - popped));
        while (room-- > 0) {
            in.request = pushed++;
            ck_assert(arena_push_submission(&pair.worker, &in));
        }
        ck_assert(!arena_push_submission(&pair.worker, &in));
        for (int i = 0; i < 1 + round % (int)ENTRIES; i++) {
            ck_assert_int_eq(arena_pop_submission(&pair.daemon, &out), 1);
            ck_assert_uint_eq(out.request, popped++);
        }
    }
    pair_destroy(&pair);
}
END_TEST

START_TEST(test_completion_ring_fills_and_wraps)
{
    struct pair pair;
    pair_create(&pair);
    struct arena_completion in = {.type = ARENA_REQUEST_DONE}, out;
    uint64_t pushed = 0, popped = 0;
    ck_assert(!arena_pop_completion(&pair.worker, &out));
    for (int round = 0; round < 50; round++) {
        for (;;) {
            in.request = pushed;
            if (!arena_push_completion(&pair.daemon, &in))
                break;
            pushed++;
        }
        ck_assert_uint_eq(pushed - popped, 2 * ENTRIES);
        for (int i = 0; i < 1 + round % (int)(2 * ENTRIES); i++) {
            ck_assert(arena_pop_completion(&pair.worker, &out));
            ck_assert_uint_eq(out.request, popped++);
        }
    }
    pair_destroy(&pair);
}
END_TEST

/* Completions that come unasked leave room for as many answers as there can be submissions. */
START_TEST(test_room_for_news)
{
    struct pair pair;
    pair_create(&pair);
    struct arena_completion in = {.type = ARENA_STABLE, .group = 7, .sequence = 1}, out;
    uint32_t pushed = 0;
    for (; arena_has_room_for_news(&pair.daemon); pushed++)
        ck_assert(arena_push_completion(&pair.daemon, &in));
    ck_assert_uint_eq(pushed, ENTRIES);
    in.type = ARENA_REQUEST_DONE;
    for (uint32_t i = 0; i < ENTRIES; i++)
        ck_assert(arena_push_completion(&pair.daemon, &in));
    ck_assert(!arena_push_completion(&pair.daemon, &in));
    for (uint32_t i = 0; i < ENTRIES; i++) {
        ck_assert(!arena_has_room_for_news(&pair.daemon));
        ck_assert(arena_pop_completion(&pair.worker, &out));
        ck_assert_uint_eq(out.type, ARENA_STABLE);
        ck_assert(out.group == 7 && out.sequence == 1 && out.offset == 0);
    }
    ck_assert(!arena_has_room_for_news(&pair.daemon));
    ck_assert(arena_pop_completion(&pair.worker, &out));
    ck_assert(arena_has_room_for_news(&pair.daemon));
    /* A worker that moves its index where it cannot be gets nothing unasked, and harms nobody. */
    struct arena_header *header = (struct arena_header *)pair.worker.base;
    atomic_store(&header->completion_head, pair.daemon.completion_index + 1);
    ck_assert(!arena_has_room_for_news(&pair.daemon));
    pair_destroy(&pair);
}
END_TEST

START_TEST(test_index_wraps_past_32_bits)
{
    struct pair pair;
    pair_create(&pair);
    struct arena_header *header = (struct arena_header *)pair.worker.base;
    const uint32_t start = UINT32_MAX - 5;
    atomic_store(&header->submission_tail, start);
    atomic_store(&header->submission_head, start);
    pair.worker.submission_index = pair.daemon.submission_index = start;
    struct arena_submission entry = {.type = ARENA_CHUNK};
    for (uint32_t i = 0; i < ENTRIES; i++) {
        entry.chunk = i;
        ck_assert(arena_push_submission(&pair.worker, &entry));
    }
    ck_assert(!arena_push_submission(&pair.worker, &entry));
    for (uint32_t i = 0; i < ENTRIES; i++) {
        ck_assert_int_eq(arena_pop_submission(&pair.daemon, &entry), 1);
        ck_assert_uint_eq(entry.chunk, i);
    }
    ck_assert_int_eq(arena_pop_submission(&pair.daemon, &entry), 0);
    pair_destroy(&pair);
}
END_TEST

START_TEST(test_nonsense_indices_are_found)
{
    struct pair pair;
    pair_create(&pair);
    struct arena_header *header = (struct arena_header *)pair.worker.base;
    struct arena_submission submission;
    atomic_store(&header->submission_tail, ENTRIES + 1);
    ck_assert_int_eq(arena_pop_submission(&pair.daemon, &submission), ERR_PROTOCOL);
    atomic_store(&header->submission_tail, UINT32_MAX);
    ck_assert_int_eq(arena_pop_submission(&pair.daemon, &submission), ERR_PROTOCOL);
    atomic_store(&header->submission_tail, 0);
    ck_assert_int_eq(arena_pop_submission(&pair.daemon, &submission), 0);
    atomic_store(&header->completion_head, 12345);
    struct arena_completion completion = {.type = ARENA_REQUEST_DONE};
    ck_assert(!arena_push_completion(&pair.daemon, &completion));
    atomic_store(&header->submission_head, 999);
    ck_assert_uint_eq(arena_submission_room(&pair.worker), 0);
    ck_assert(!arena_push_submission(&pair.worker, &submission));
    pair_destroy(&pair);
}
END_TEST

START_TEST(test_ranges)
{
    struct pair pair;
    pair_create(&pair);
    const struct arena *arena = &pair.daemon;
    uint64_t first = arena->data_offset, last = arena->total_bytes;
    ck_assert(arena_range_valid(arena, first, last - first));
    ck_assert(arena_range_valid(arena, first, 0));
    ck_assert(arena_range_valid(arena, last, 0));
    ck_assert(arena_range_valid(arena, last - 64, 64));
    ck_assert(!arena_range_valid(arena, last - 64, 65));
    ck_assert(!arena_range_valid(arena, first, last - first + 1));
    ck_assert(!arena_range_valid(arena, first - 64, 64));
    ck_assert(!arena_range_valid(arena, 0, 64));
    ck_assert(!arena_range_valid(arena, first + 8, 64));
    ck_assert(!arena_range_valid(arena, first, UINT64_MAX));
    ck_assert(!arena_range_valid(arena, UINT64_MAX - 63, 64));
    ck_assert(!arena_range_valid(arena, last + 64, 0));
    pair_destroy(&pair);
}
END_TEST

START_TEST(test_sleeping_words)
{
    struct pair pair;
    pair_create(&pair);
    struct arena_submission submission = {.type = ARENA_SUBMIT};
    struct arena_completion completion = {.type = ARENA_REQUEST_DONE};
    ck_assert(!arena_daemon_needs_doorbell(&pair.worker));
    ck_assert(!arena_daemon_prepare_sleep(&pair.daemon));
    arena_push_submission(&pair.worker, &submission);
    ck_assert(arena_daemon_needs_doorbell(&pair.worker));
    ck_assert(!arena_daemon_needs_doorbell(&pair.worker));
    ck_assert(arena_daemon_prepare_sleep(&pair.daemon));
    ck_assert(!arena_daemon_needs_doorbell(&pair.worker));
    ck_assert_int_eq(arena_pop_submission(&pair.daemon, &submission), 1);
    ck_assert(!arena_daemon_prepare_sleep(&pair.daemon));
    arena_daemon_cancel_sleep(&pair.daemon);
    ck_assert(!arena_daemon_needs_doorbell(&pair.worker));

    ck_assert(!arena_worker_prepare_sleep(&pair.worker));
    arena_push_completion(&pair.daemon, &completion);
    ck_assert(arena_worker_needs_doorbell(&pair.daemon));
    ck_assert(!arena_worker_needs_doorbell(&pair.daemon));
    ck_assert(arena_worker_prepare_sleep(&pair.worker));
    ck_assert(arena_pop_completion(&pair.worker, &completion));
    ck_assert(!arena_worker_prepare_sleep(&pair.worker));
    arena_worker_cancel_sleep(&pair.worker);
    ck_assert(!arena_worker_needs_doorbell(&pair.daemon));
    pair_destroy(&pair);
}
END_TEST

/* Two threads that sleep whenever they can: a lost wake-up would stop them for good. */
struct ping {
    struct pair pair;
    int to_daemon, to_worker;
    uint64_t entries;
};

static void doorbell_ring(int fd)
{
    uint64_t one = 1;
    ck_assert_int_eq(write(fd, &one, sizeof(one)), sizeof(one));
}

static void doorbell_wait(int fd)
{
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    ck_assert_int_eq(poll(&poller, 1, 30000), 1);
    uint64_t value;
    ck_assert_int_eq(read(fd, &value, sizeof(value)), sizeof(value));
}

static void *echo_daemon(void *argument)
{
    struct ping *ping = argument;
    struct arena_submission submission;
    for (uint64_t done = 0; done < ping->entries;) {
        int got = arena_pop_submission(&ping->pair.daemon, &submission);
        ck_assert_int_ge(got, 0);
        if (got == 0) {
            if (!arena_daemon_prepare_sleep(&ping->pair.daemon))
                doorbell_wait(ping->to_daemon);
            continue;
        }
        struct arena_completion completion = {.type = ARENA_REQUEST_DONE,
                                              .request = submission.request};
        ck_assert(arena_push_completion(&ping->pair.daemon, &completion));
        if (arena_worker_needs_doorbell(&ping->pair.daemon))
            doorbell_ring(ping->to_worker);
        done++;
    }
    return NULL;
}

START_TEST(test_no_wakeup_is_lost)
{
    struct ping ping = {.entries = 20000};
    pair_create(&ping.pair);
    ping.to_daemon = eventfd(0, EFD_CLOEXEC);
    ping.to_worker = eventfd(0, EFD_CLOEXEC);
    pthread_t daemon;
    ck_assert_int_eq(pthread_create(&daemon, NULL, echo_daemon, &ping), 0);
    uint64_t pushed = 0, popped = 0, window = 1;
    while (popped < ping.entries) {
        struct arena_submission submission = {.type = ARENA_SUBMIT};
        while (pushed < ping.entries && pushed - popped < window) {
            submission.request = pushed;
            if (!arena_push_submission(&ping.pair.worker, &submission))
                break;
            pushed++;
        }
        if (arena_daemon_needs_doorbell(&ping.pair.worker))
            doorbell_ring(ping.to_daemon);
        struct arena_completion completion;
        bool got = false;
        while (arena_pop_completion(&ping.pair.worker, &completion)) {
            ck_assert_uint_eq(completion.request, popped);
            popped++;
            got = true;
        }
        if (!got && !arena_worker_prepare_sleep(&ping.pair.worker))
            doorbell_wait(ping.to_worker);
        window = 1 + popped % ENTRIES;
    }
    pthread_join(daemon, NULL);
    close(ping.to_daemon);
    close(ping.to_worker);
    pair_destroy(&ping.pair);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("arena");
    TCase *cases = tcase_create("arena");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, test_create_and_attach);
    tcase_add_test(cases, test_size_is_rounded_up_to_pages);
    tcase_add_test(cases, test_create_refuses_bad_sizes);
    tcase_add_test(cases, test_attach_refuses_what_is_not_sealed);
    tcase_add_test(cases, test_the_daemon_says_that_it_traces);
    tcase_add_test(cases, test_attach_refuses_a_bad_header);
    tcase_add_test(cases, test_random_headers_never_crash);
    tcase_add_test(cases, test_submission_ring_fills_and_wraps);
    tcase_add_test(cases, test_completion_ring_fills_and_wraps);
    tcase_add_test(cases, test_room_for_news);
    tcase_add_test(cases, test_index_wraps_past_32_bits);
    tcase_add_test(cases, test_nonsense_indices_are_found);
    tcase_add_test(cases, test_ranges);
    tcase_add_test(cases, test_sleeping_words);
    tcase_add_test(cases, test_no_wakeup_is_lost);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
