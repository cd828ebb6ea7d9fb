/* One exchange with a table that does nothing by itself: sends, tasks, completions, events and
 * posted receives are kept until the test takes them, and the test plays all the other nodes. */
#ifndef TESTS_LIB_SERVER_EXCHANGE_FIXTURE_H
#define TESTS_LIB_SERVER_EXCHANGE_FIXTURE_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "common/memory/buffer.h"
#include "server/exchange/exchange.h"

#define FIXTURE_NODES 12
#define FIXTURE_RANKS 16
#define FIXTURE_QUEUE 512
#define FIXTURE_JOB 0xabcull
/* Elements of f32 in one chunk when chunk_bytes is left out. */
#define FIXTURE_CHUNK 64u

#define EXPECT_MSG(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg(__VA_ARGS__);                                                             \
    } while (0)
#define EXPECT(condition) EXPECT_MSG(condition, "%s", #condition)

struct fixture_options {
    uint32_t self;
    uint32_t nodes;
    uint32_t ranks;
    uint32_t rank_nodes[FIXTURE_RANKS];
    uint32_t weights[FIXTURE_NODES]; /* 0: no server */
    uint32_t chunk_bytes;            /* 0: 256 */
    uint32_t window;                 /* 0: 4 */
    uint32_t window_bytes;           /* 0: more than the window */
    uint64_t late_ns;                /* 0: 1000 */
    uint64_t silence_ns;             /* 0: nobody is ever silent for too long */
    uint64_t buffers;                /* limit; 0: 1000 */
    uint64_t arena_bytes;            /* of a rank; 0: the least */
    bool shared_receives;
    bool recovery;
    bool no_recovery;    /* the jobs refuse it */
    bool leave_closed;   /* the job is not opened, nobody attached */
    bool leave_down;     /* the peers are not up */
    uint32_t user;       /* whose the jobs are that are opened */
    uint64_t kept_bytes; /* of a user; 0: no limit */
    uint32_t keep_steps; /* results kept for replays */
    uint64_t keep_bytes;
    uint64_t lineage; /* of the jobs that are opened; and their generation */
    uint32_t generation;
};

struct fixture_completion {
    uint32_t rank;
    struct arena_completion it;
};

struct fixture {
    struct fixture_options options;
    struct exchange *exchange;
    struct buffer_pool *pool;
    const char *names[FIXTURE_NODES];
    struct exchange_worker workers[FIXTURE_RANKS]; /* by rank; those of this node */
    bool attached[FIXTURE_RANKS];                  /* and not released */
    void *memory[FIXTURE_RANKS];
    struct exchange_send *sends[FIXTURE_QUEUE]; /* connection: how many completions came before */
    uint32_t send_count;
    struct reduce_task *tasks[FIXTURE_QUEUE];
    uint32_t task_count;
    struct fixture_completion completions[FIXTURE_QUEUE];
    uint32_t completion_count;
    struct engine_event *events[FIXTURE_QUEUE];
    uint32_t event_count;
    struct buffer *posted[FIXTURE_QUEUE];
    uint32_t posted_count;
    uint32_t released_segments;
    uint32_t silent[FIXTURE_NODES]; /* how often a peer was found to be silent */
    bool refuse_receives;           /* post_receive fails */
    uint32_t receives;              /* post_receive fails when so many are posted; 0: never */
    bool refuse_slabs;              /* and so does registering memory */
    uint64_t now_ns;
    struct error error; /* of the last call that failed */
};

/* The tokens of the pair with node. */
uint64_t fixture_receive_token(uint32_t node);
uint64_t fixture_send_token(uint32_t node);

struct fixture *fixture_create(const struct fixture_options *options);
/* Gives all back, closes all jobs, and fails the test when buffers or workers are left. */
void fixture_destroy(struct fixture *fixture);

/* Opens another job with the ranks and servers of the options, nobody attached. */
int fixture_open_job(struct fixture *fixture, uint64_t job);
int fixture_attach(struct fixture *fixture, uint64_t job, uint32_t rank);
void fixture_peer_down(struct fixture *fixture, uint32_t node);

/* Offset of the n-th 64 KiB of data in an arena, and its address. */
uint64_t fixture_offset(const struct fixture *fixture, uint32_t rank, uint32_t n);
float *fixture_data(struct fixture *fixture, uint32_t rank, uint32_t n);
void fixture_fill(struct fixture *fixture, uint32_t rank, uint32_t n, uint32_t count, float first);

/* An all_reduce of f32 in place at place `sequence % 8`, to be changed at will. */
struct arena_submission fixture_ask(const struct fixture *fixture, uint32_t rank, uint64_t sequence,
                                    uint64_t count);
/* Then exchange_run and exchange_check; the error is kept. */
int fixture_submit(struct fixture *fixture, uint32_t rank,
                   const struct arena_submission *submission);
/* Submit a sum as fixture_submit does; it must succeed. */
void fixture_submit_sum(struct fixture *fixture, uint32_t rank, uint64_t sequence, uint64_t count);
int fixture_hand_over(struct fixture *fixture, uint32_t rank, uint64_t sequence, uint32_t chunk,
                      uint64_t offset);

/* A header as the other node would send it for the collective of fixture_ask. */
struct wire_header fixture_header(uint32_t node, uint8_t type, uint64_t sequence, uint32_t chunk,
                                  uint64_t count);
/* Delivers a message in a receive that was posted for the node; sets payload_bytes. */
int fixture_message(struct fixture *fixture, uint32_t node, struct wire_header header,
                    const void *payload, uint32_t bytes);
/* Deliver any bytes as fixture_message does. */
int fixture_raw_message(struct fixture *fixture, uint32_t node, const uint8_t *message,
                        uint32_t bytes);
/* A chunk of all the same elements, of the all_reduce of `count`. */
int fixture_contribute(struct fixture *fixture, uint32_t node, uint64_t sequence, uint32_t chunk,
                       uint64_t count, float value);
int fixture_result(struct fixture *fixture, uint32_t node, uint64_t sequence, uint32_t chunk,
                   uint64_t count, float value);
uint32_t fixture_posted(const struct fixture *fixture, uint32_t node);

/* The header of the n-th send that waits. */
struct wire_header fixture_sending(const struct fixture *fixture, uint32_t n);
/* Gives the n-th one back. */
void fixture_sent(struct fixture *fixture, uint32_t n);
void fixture_all_sent(struct fixture *fixture);
/* Does the n-th task and gives it back. */
void fixture_reduce(struct fixture *fixture, uint32_t n);
void fixture_all_reduced(struct fixture *fixture);

/* Takes the oldest event, which must be of this type; the caller frees it. */
struct engine_event *fixture_event(struct fixture *fixture, enum engine_event_type type);
/* Takes the oldest event, a group's failure with this code and these words. */
void fixture_expect_failure(struct fixture *fixture, int code, const char *words);
/* The call failed, with this code and these words. */
void fixture_expect_error(const struct fixture *fixture, int result, int code, const char *words);
/* The rank has been told that its request is done, and is forgotten to have been told. */
bool fixture_completed(struct fixture *fixture, uint32_t rank, uint64_t request);
void fixture_run(struct fixture *fixture);

#endif
