/* Engines with their threads and the workers of one job, for the tests of the engine. */
#ifndef TESTS_LIB_SERVER_ENGINE_FIXTURE_H
#define TESTS_LIB_SERVER_ENGINE_FIXTURE_H

#include <check.h>

#include "common/base/clock.h"
#include "server/engine/engine.h"

#define EXPECT_MSG(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg(__VA_ARGS__);                                                             \
    } while (0)
#define EXPECT(condition) EXPECT_MSG(condition, "%s", #condition)

#define JOB 0x1234567890abcdefull
#define PATIENCE_NS (60 * NS_PER_S)
#define CHUNK_BYTES 4096u

/* Gives the engine a command, of these members. */
#define give(engine, ...) engine_command(engine, &(struct engine_command){__VA_ARGS__})

struct node {
    bool sealed;          /* set before node_start; nodes_connect then gives keys */
    bool wrong_key;       /* that others cannot open what it seals */
    uint32_t connections; /* with the other one, made so far */
    struct config config;
    struct config_server servers[2];
    struct log log;
    struct engine *engine;
};

struct worker {
    struct arena arena;
    uint32_t rank;
    int submission_doorbell, completion_doorbell;
};

/* Node `self` of `count`, on 127.0.0.1 over tcp, with so many reduce threads. */
void node_configure(struct node *node, uint32_t self, uint32_t count, uint32_t threads);
void node_start(struct node *node);
/* The next event, which must be of this type, but for news of workers let go, which are passed
 * over; the caller frees it. expect: and has this code. */
struct engine_event *node_event(struct node *node, enum engine_event_type type);
void node_expect(struct node *node, enum engine_event_type type, int code);
/* All commands given so far have been carried out; nothing is in progress. */
void node_settle(struct node *node);
/* Connect the nodes; both are up for each other on return. */
void nodes_connect(struct node nodes[2]);
/* Waits for a picture with at least so many collectives and nothing in progress. */
struct engine_status node_status(struct node *node, uint64_t collectives);
/* Open descriptors of this process. */
int descriptor_count(void);
/* A worker with an arena and doorbells of its own; the engine has duplicates. */
void worker_attach(struct worker *worker, struct node *node, uint32_t rank);
void worker_release(struct worker *worker);
void ring(int descriptor);
void worker_push(struct worker *worker, const struct arena_submission *submission);
/* An all_reduce of f32 at the beginning of the data, request 1000 + sequence. */
void worker_submit(struct worker *worker, uint64_t sequence, uint64_t count);
/* Sleeps until the worker is told something. */
struct arena_completion worker_next(struct worker *worker);
/* Sleeps until the request is reported as done; it must be the next. */
void worker_wait(struct worker *worker, uint64_t request);
/* On the nodes given, each of which is a server too. */
void open_job(struct node *nodes, uint32_t node_count, const uint32_t *rank_nodes, uint32_t ranks);
/* One all_reduce of all workers, checked. */
void reduce_once(struct worker *workers, uint32_t count, uint64_t sequence, uint64_t elements);

#endif
