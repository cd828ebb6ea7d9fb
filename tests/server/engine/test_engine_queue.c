#include "server/engine/threads/engine_queue.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/lib/suite.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

static bool rings(const struct engine_queue *queue)
{
    struct pollfd fd = {queue->descriptor, POLLIN, 0};
    return poll(&fd, 1, 0) == 1;
}

START_TEST(commands_come_in_order_and_the_descriptor_tells)
{
    struct engine_queue queue;
    struct error error = {0};
    ck_assert_int_eq(engine_queue_init(&queue, &error), 0);
    ck_assert_ptr_null(engine_queue_take_command(&queue));
    ck_assert(!rings(&queue));
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 10; i++) {
            engine_queue_put_command(
                &queue, &(struct engine_command){.kind = COMMAND_GROUP_OPEN, .group = i});
            ck_assert(rings(&queue));
        }
        for (uint32_t i = 0; i < 10; i++) {
            struct engine_command_item *item = engine_queue_take_command(&queue);
            ck_assert_ptr_nonnull(item);
            ck_assert_uint_eq(item->command.group, i);
            ck_assert(rings(&queue)); /* until somebody found it empty */
            free(item);
        }
        ck_assert_ptr_null(engine_queue_take_command(&queue));
        ck_assert(!rings(&queue));
    }
    engine_queue_clear(&queue);
    ck_assert_int_eq(queue.descriptor, -1);
    engine_queue_clear(&queue);
}
END_TEST

/* One system call for many items, and none of a taker who finds nothing. */
START_TEST(the_descriptor_rings_once)
{
    struct engine_queue queue;
    ck_assert_int_eq(engine_queue_init(&queue, NULL), 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++)
            engine_queue_put_command(&queue, &(struct engine_command){.kind = COMMAND_DRAIN});
        engine_queue_wake(&queue);
        uint64_t count = 0;
        ck_assert_int_eq(read(queue.descriptor, &count, sizeof(count)), sizeof(count));
        ck_assert_uint_eq(count, 1);
        ck_assert_int_eq(write(queue.descriptor, &count, sizeof(count)), sizeof(count));
        for (int i = 0; i < 3; i++)
            free(engine_queue_take_command(&queue));
        ck_assert_ptr_null(engine_queue_take_command(&queue));
        ck_assert(!rings(&queue));
        engine_queue_wake(&queue); /* an empty one, too */
        ck_assert(rings(&queue));
        ck_assert_ptr_null(engine_queue_take_command(&queue));
        ck_assert(!rings(&queue));
    }
    uint64_t one = 1; /* that the queue does not know of */
    ck_assert_int_eq(write(queue.descriptor, &one, sizeof(one)), sizeof(one));
    ck_assert_ptr_null(engine_queue_take_command(&queue));
    ck_assert(rings(&queue)); /* not looked at */
    engine_queue_clear(&queue);
}
END_TEST

START_TEST(events_come_in_order_and_the_descriptor_tells)
{
    struct engine_queue queue;
    ck_assert_int_eq(engine_queue_init(&queue, NULL), 0);
    for (uint32_t i = 0; i < 5; i++) {
        struct engine_event *event = engine_event_create(ENGINE_PEER_UP);
        event->node = i;
        engine_queue_put_event(&queue, event);
    }
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert(rings(&queue));
        struct engine_event *event = engine_queue_take_event(&queue);
        ck_assert_uint_eq(event->node, i);
        engine_event_free(event);
        /* what is put meanwhile comes last */
        if (i == 2) {
            event = engine_event_create(ENGINE_IDLE);
            event->node = 5;
            engine_queue_put_event(&queue, event);
        }
    }
    struct engine_event *last = engine_queue_take_event(&queue);
    ck_assert_int_eq(last->type, ENGINE_IDLE);
    engine_event_free(last);
    ck_assert_ptr_null(engine_queue_take_event(&queue));
    ck_assert(!rings(&queue));
    engine_queue_clear(&queue);
}
END_TEST

START_TEST(new_ones_are_zero)
{
    struct engine_event *event = engine_event_create(ENGINE_LATE);
    ck_assert_int_eq(event->type, ENGINE_LATE);
    ck_assert_int_eq(event->code, 0);
    ck_assert_str_eq(event->text, "");
    event->ranks = calloc(4, sizeof(*event->ranks));
    event->nodes = calloc(4, sizeof(*event->nodes));
    event->positions = calloc(4, sizeof(*event->positions));
    engine_event_free(event);
    engine_event_free(NULL);
}
END_TEST

#define EVENTS 20000

static void *put_events(void *argument)
{
    struct engine_queue *queue = argument;
    for (uint32_t i = 0; i < EVENTS; i++) {
        struct engine_event *event = engine_event_create(ENGINE_IDLE);
        event->node = i;
        engine_queue_put_event(queue, event);
    }
    return NULL;
}

/* A thread that sleeps on the descriptor misses nothing. */
START_TEST(a_sleeping_thread_gets_everything)
{
    struct engine_queue queue;
    ck_assert_int_eq(engine_queue_init(&queue, NULL), 0);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, put_events, &queue), 0);
    for (uint32_t next = 0; next < EVENTS;) {
        struct pollfd fd = {queue.descriptor, POLLIN, 0};
        EXPECT(poll(&fd, 1, -1) == 1);
        struct engine_event *event;
        while ((event = engine_queue_take_event(&queue)) != NULL) {
            EXPECT(event->node == next);
            next++;
            engine_event_free(event);
        }
    }
    pthread_join(thread, NULL);
    ck_assert_ptr_null(engine_queue_take_event(&queue));
    engine_queue_clear(&queue);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_queue");
    TCase *tests = tcase_create("engine_queue");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, commands_come_in_order_and_the_descriptor_tells);
    tcase_add_test(tests, the_descriptor_rings_once);
    tcase_add_test(tests, events_come_in_order_and_the_descriptor_tells);
    tcase_add_test(tests, new_ones_are_zero);
    tcase_add_test(tests, a_sleeping_thread_gets_everything);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
