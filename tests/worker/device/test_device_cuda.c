/* Streams of a device that share its queues, as streams of one priority do: operations that wait on
 * one stream hold up others. The default stream has its tests here too. All run on the stand-in for
 * CUDA's driver. */
#include "worker/device/device.h"

#include "tests/lib/cuda/cuda_stand_in.h"
#include "tests/lib/suite.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define GOOD(call) ck_assert_msg((call) == 0, "%s", error.text)

/* cudaStreamLegacy. */
#define CUDA_STREAM_LEGACY ((void *)1)

enum { STREAMS = 4, BYTES = 4096, RING_MS = 20000 /* a backstop, when it does not ring */ };

static struct error error;

struct fixture {
    struct device *device;
    int wake_fd;
    void *streams[STREAMS]; /* the caller's */
    void *memory;
    uint8_t *pinned;
    uint32_t rung;
};

static void fixture_open(struct fixture *fixture, int queues)
{
    const struct stand_in *cuda = stand_in_open();
    cuda->set_queues(queues);
    fixture->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    GOOD(device_open(&fixture->device, 0, cuda->path, fixture->wake_fd, &error));
    for (int i = 0; i < STREAMS; i++)
        fixture->streams[i] = cuda->stream_make();
    fixture->pinned = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(fixture->pinned, MAP_FAILED);
    GOOD(device_pin(fixture->device, fixture->pinned, BYTES, &error));
    GOOD(device_allocate(fixture->device, BYTES, &fixture->memory, &error));
}

static void fixture_close(struct fixture *fixture)
{
    GOOD(device_free(fixture->device, fixture->memory, &error));
    for (int i = 0; i < STREAMS; i++)
        stand_in_open()->stream_drop(fixture->streams[i]);
    device_close(fixture->device);
    munmap(fixture->pinned, BYTES);
    close(fixture->wake_fd);
    stand_in_open()->set_queues(0);
    stand_in_check_nothing_left(true);
}

static void *new_event(struct fixture *fixture)
{
    void *event;
    GOOD(device_event_create(fixture->device, &event, &error));
    return event;
}

static void expect_ring(struct fixture *fixture, unsigned bell)
{
    while (!(fixture->rung & 1u << bell)) {
        struct pollfd poller = {.fd = fixture->wake_fd, .events = POLLIN};
        eventfd_t value;
        ck_assert_msg(poll(&poller, 1, RING_MS) == 1, "bell %u does not ring", bell);
        eventfd_read(fixture->wake_fd, &value);
        fixture->rung |= device_rung(fixture->device);
    }
    fixture->rung &= ~(1u << bell);
}

static void expect_done(struct fixture *fixture, void *event)
{
    int done;
    while ((done = device_event_done(fixture->device, event, &error)) == 0)
        sched_yield();
    ck_assert_msg(done == 1, "%s", error.text);
}

/* The bell is to ring. */
static void start_copy(struct fixture *fixture, enum device_lane lane, void *event)
{
    bool begun;
    struct device_copy copy = {.to = fixture->memory, .from = fixture->pinned, .bytes = BYTES};
    if (lane == DEVICE_OUT)
        copy = (struct device_copy){.to = fixture->pinned, .from = fixture->memory, .bytes = BYTES};
    GOOD(device_copy(fixture->device, lane, &copy, 1, event, &begun, &error));
    GOOD(device_ring_after(fixture->device, lane, event, &error));
}

static void copy_and_ring(struct fixture *fixture, enum device_lane lane, void *event)
{
    start_copy(fixture, lane, event);
    expect_ring(fixture, lane);
}

/* All streams of a priority share one queue, and one of the caller's waits for a word: what has to
 * come before that word is written still rings. */
START_TEST(test_bells_ring_behind_a_wait)
{
    struct fixture fixture = {.rung = 0};
    fixture_open(&fixture, 1);
    void *arrival = new_event(&fixture), *wait = new_event(&fixture), *copies = new_event(&fixture);
    GOOD(device_event_record(fixture.device, arrival, fixture.streams[0], &error));
    GOOD(device_wait_for_word(fixture.device, fixture.streams[0], 0, 1, wait, &error));
    GOOD(device_ring_after(fixture.device, DEVICE_BELL_GATE, arrival, &error));
    expect_ring(&fixture, DEVICE_BELL_GATE);
    copy_and_ring(&fixture, DEVICE_OUT, copies);
    copy_and_ring(&fixture, DEVICE_IN, copies);
    ck_assert_int_eq(device_event_done(fixture.device, wait, &error), 0);
    atomic_store(device_word(fixture.device, 0), 1);
    expect_done(&fixture, wait);
    GOOD(device_ring_after(fixture.device, DEVICE_BELL_WAITS, copies, &error));
    expect_ring(&fixture, DEVICE_BELL_WAITS);
    device_event_destroy(fixture.device, arrival);
    device_event_destroy(fixture.device, wait);
    device_event_destroy(fixture.device, copies);
    fixture_close(&fixture);
}
END_TEST

/* A stream of the caller's waits for a word, and a request of that stream waits at a gate: only
 * streams of the same queue wait with it. */
START_TEST(test_bells_hold_up_no_stream)
{
    const struct stand_in *cuda = stand_in_open();
    struct fixture fixture = {.rung = 0};
    fixture_open(&fixture, 2);
    void *waits = fixture.streams[_i], *goes_on = fixture.streams[!_i];
    void *wait = new_event(&fixture), *arrival = new_event(&fixture), *end = new_event(&fixture);
    GOOD(device_wait_for_word(fixture.device, waits, 0, 1, wait, &error));
    GOOD(device_event_record(fixture.device, arrival, waits, &error));
    for (unsigned gate = 0; gate < DEVICE_GATES; gate++)
        GOOD(device_ring_after(fixture.device, DEVICE_BELL_GATE + gate, arrival, &error));
    cuda->stream_copy(goes_on, fixture.memory, fixture.pinned, BYTES);
    GOOD(device_event_record(fixture.device, end, goes_on, &error));
    expect_done(&fixture, end);
    ck_assert_int_eq(device_event_done(fixture.device, wait, &error), 0);
    atomic_store(device_word(fixture.device, 0), 1);
    for (unsigned gate = 0; gate < DEVICE_GATES; gate++)
        expect_ring(&fixture, DEVICE_BELL_GATE + gate);
    device_event_destroy(fixture.device, wait);
    device_event_destroy(fixture.device, arrival);
    device_event_destroy(fixture.device, end);
    fixture_close(&fixture);
}
END_TEST

/* Host functions are late, as when the program's own keep the driver's thread: copies go on. */
START_TEST(test_bells_hold_up_no_copy)
{
    struct fixture fixture = {.rung = 0};
    fixture_open(&fixture, 1);
    void *event = new_event(&fixture);
    stand_in_open()->functions_hold(true);
    for (enum device_lane lane = DEVICE_OUT; lane < DEVICE_LANES; lane++) {
        start_copy(&fixture, lane, event);
        expect_done(&fixture, event);
    }
    ck_assert_uint_eq(device_rung(fixture.device), 0);
    stand_in_open()->functions_hold(false);
    expect_ring(&fixture, DEVICE_BELL_OUT);
    expect_ring(&fixture, DEVICE_BELL_IN);
    device_event_destroy(fixture.device, event);
    fixture_close(&fixture);
}
END_TEST

/* --- the default stream ---------------------------------------------------------------------- */

/* By each of its handles, several copies at once, which it takes one by one. */
START_TEST(test_copies_on_the_default_stream)
{
    enum { PARTS = 4, PART = BYTES / PARTS };
    struct fixture fixture = {.rung = 0};
    struct device_copy copies[PARTS];
    void *stream = _i == 0 ? NULL : CUDA_STREAM_LEGACY;
    fixture_open(&fixture, 0);
    uint8_t *memory = fixture.memory;
    for (int back = 0; back < 2; back++) {
        for (int i = 0; i < PARTS; i++) {
            uint8_t *device = memory + i * PART, *host = fixture.pinned + i * PART;
            memset(host, back ? 0 : i + 1, PART);
            copies[i] = (struct device_copy){
                .to = back ? host : device, .from = back ? device : host, .bytes = PART};
        }
        GOOD(device_copy_on(fixture.device, stream, copies, PARTS, &error));
        GOOD(device_finish_on(fixture.device, stream, &error));
    }
    for (int i = 0; i < BYTES; i++)
        ck_assert_uint_eq(fixture.pinned[i], i / PART + 1);
    fixture_close(&fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_cuda");
    TCase *queues = tcase_create("queues");
    tcase_set_timeout(queues, 60);
    tcase_add_test(queues, test_bells_ring_behind_a_wait);
    tcase_add_loop_test(queues, test_bells_hold_up_no_stream, 0, 2);
    tcase_add_test(queues, test_bells_hold_up_no_copy);
    suite_add_tcase(suite, queues);
    TCase *others = tcase_create("default stream");
    tcase_add_loop_test(others, test_copies_on_the_default_stream, 0, 2);
    suite_add_tcase(suite, others);
    return suite_main(suite);
}
