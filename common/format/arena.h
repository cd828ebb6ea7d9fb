/* The arena: memory that a worker makes (a sealed memfd) and shares with its node's daemon.
 *
 *   header page | submission ring | completion ring | data (staging slots and user buffers)
 *
 * The worker writes submissions and reads completions, the daemon the other way round. The arena
 * is the worker's: the daemon keeps its own ring indices and geometry, copies an entry before it
 * looks at it, and checks every offset. Each ring has one producer and one consumer thread.
 * A side that is about to sleep sets its `sleeping` word; the other side then rings its doorbell
 * and clears the word, so that a busy side costs no system call.
 *
 * A *staged* request hands its chunks over one by one, in chunk order, with ARENA_CHUNK entries
 * that name where in the arena each lies; the result chunk is written to the same memory and
 * reported with ARENA_CHUNK_DONE. When the group has failed that gives the memory back and no
 * result; the request then never reports its end. A request that is not staged has all its data at
 * in_offset and its result at out_offset (which may be equal) from the start, and reports only
 * ARENA_REQUEST_DONE. A staged request reports ARENA_REQUEST_DONE too, after its last chunk. Errors
 * do not travel here but over the Unix socket, with their text.
 *
 * In a job with recovery ARENA_STABLE says of a group up to where all its ranks have their results:
 * what is below that number nobody ever needs again. Only the latest counts. It takes no more than
 * half of the ring, so that the rest is as large as the submission ring; what finds no room is said
 * when there is some.
 *
 * Calls common/base.
 */
#ifndef COMMON_FORMAT_ARENA_H
#define COMMON_FORMAT_ARENA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

#define ARENA_MAGIC 0x414c4f4853ull /* "SHOLA" */
#define ARENA_VERSION 9
#define ARENA_ALIGNMENT 64 /* of every offset handed over for data */
/* Most entries of the submission or the completion ring. Each number of entries is a power of two,
 * at least 16. The completion ring has at least twice as many as the submission ring, so that the
 * submission ring has 16 to 32768 and the completion ring 32 to 65536. */
#define ARENA_RING_ENTRIES_MAX 65536u
#define ARENA_LEAST_BYTES (1u << 20)

enum arena_submission_type {
    ARENA_SUBMIT = 1, /* a collective: all fields */
    ARENA_CHUNK = 2,  /* one chunk of a staged request: group, request, sequence, block, chunk,
                       * in_offset; and begin_ns, end_ns of the copy in, or 0 */
    ARENA_COPIED = 3, /* while the job is traced, a chunk was copied out: group, request, sequence,
                       * block, chunk, begin_ns, end_ns; and omitted */
    ARENA_NUMBER = 4, /* of group 0: the collective with this sequence has the number in `count`
                       * since the job began, and what is kept of that number, and of later ones, is
                       * not the job's */
};

#define ARENA_FLAG_STAGED 1u
/* Flag of a COLLECTIVE_SEND: tell when any rank has sent with the tag in `sequence`. At in_offset
 * lie as many u32 as the group has ranks: how many sends with the tag this rank has got from each.
 * The completion's chunk is the rank that has sent one more, or UINT32_MAX: all others have left.
 */
#define ARENA_FLAG_ANY 2u
/* Flag of an all_reduce: the result goes to out_offset of shared memory number `segment` of the
 * group, instead of to this arena; with ARENA_FLAG_STAGED the chunks come back without a result. */
#define ARENA_FLAG_SHARED 4u
/* Flag of a collective that travels in shards (collective_in_shards), and so has no blocks: the
 * tensor has an identity. */
#define ARENA_FLAG_IDENTITY 8u

struct arena_submission {
    uint8_t type; /* enum arena_submission_type */
    uint8_t kind; /* enum collective_kind */
    uint8_t dtype;
    uint8_t op; /* enum reduce_op; of a receive enum wire_take */
    uint32_t group;
    uint64_t request;  /* the worker's own number, echoed in completions */
    uint64_t sequence; /* of the group: 0, 1, 2 ... in the order that all ranks submit; the blocks
                        * of a collective have its own, and follow it by number, before the next;
                        * of sends see common/format/wire.h */
    union {
        uint64_t count;    /* ARENA_SUBMIT: elements; ARENA_NUMBER */
        uint64_t begin_ns; /* the others: CLOCK_MONOTONIC; for a trace, and decides nothing */
    };
    uint64_t in_offset;
    union {
        uint64_t out_offset; /* ARENA_SUBMIT */
        uint64_t end_ns;     /* the others */
    };
    union {
        uint32_t root;    /* ARENA_SUBMIT */
        uint32_t segment; /* with ARENA_FLAG_SHARED, of which none has a root */
        uint32_t chunk;   /* ARENA_CHUNK */
    };
    union {
        uint32_t block;    /* of the collective (common/format/route.h), or 0 */
        uint32_t identity; /* ARENA_SUBMIT with ARENA_FLAG_IDENTITY */
    };
    union {
        uint32_t flags;   /* ARENA_SUBMIT */
        uint32_t omitted; /* ARENA_COPIED: such entries that were not made since the last, for want
                           * of room */
    };
    uint32_t priority; /* smaller goes first among the requests in flight */
};

enum arena_completion_type { ARENA_CHUNK_DONE = 1, ARENA_REQUEST_DONE = 2, ARENA_STABLE = 3 };

/* The chunk of an ARENA_REQUEST_DONE: of a replay, it is not kept; of a send or receive, the two do
 * not fit, and nothing was copied. */
#define ARENA_REFUSED 1u

struct arena_completion {
    uint8_t type;  /* enum arena_completion_type */
    uint8_t dtype; /* ARENA_REQUEST_DONE with ARENA_REFUSED of a send or receive: as `count` */
    uint8_t zero[2];
    union {
        uint32_t chunk;
        uint32_t group; /* ARENA_STABLE */
    };
    union {
        uint64_t request;
        uint64_t sequence; /* ARENA_STABLE: all ranks of the group have the results of all its
                            * collectives, and of all their blocks, with a smaller number */
    };
    union {
        uint64_t offset; /* ARENA_CHUNK_DONE: where the chunk lies (the in_offset that was given) */
        uint64_t count;  /* ARENA_REQUEST_DONE of a send or receive: the elements that the other
                          * rank gave or asked for, which are those that have come if it fits */
    };
    uint64_t reserved;
};

_Static_assert(sizeof(struct arena_submission) == 64, "arena_submission is 64 bytes");
_Static_assert(sizeof(struct arena_completion) == 32, "arena_completion is 32 bytes");

/* At offset 0 of the shared memory. Everything is set by the worker before it hands the arena over.
 */
struct arena_header {
    uint64_t magic;
    uint32_t version;
    uint32_t submission_entries; /* power of two */
    uint32_t completion_entries; /* power of two, at least twice submission_entries */
    uint32_t zero;
    uint64_t total_bytes;
    uint64_t submission_offset;
    uint64_t completion_offset;
    uint64_t data_offset;
    _Alignas(64) _Atomic uint32_t submission_tail; /* written by the worker */
    _Alignas(64) _Atomic uint32_t submission_head; /* written by the daemon */
    _Alignas(64) _Atomic uint32_t completion_tail; /* written by the daemon */
    _Alignas(64) _Atomic uint32_t completion_head; /* written by the worker */
    _Alignas(64) _Atomic uint32_t daemon_sleeping;
    _Alignas(64) _Atomic uint32_t worker_sleeping;
    _Alignas(64) _Atomic uint32_t tracing; /* written by the daemon: it wants ARENA_COPIED */
};

/* One side's view of a mapped arena: own copies of geometry and of its own indices. */
struct arena {
    uint8_t *base;
    uint64_t total_bytes;
    uint64_t data_offset;
    uint32_t submission_mask;
    uint32_t completion_mask;
    struct arena_submission *submissions;
    struct arena_completion *completions;
    uint32_t submission_index; /* worker: next to write; daemon: next to read */
    uint32_t completion_index; /* worker: next to read; daemon: next to write */
};

/* Worker: create the memfd, size it, map it, fill the header, seal it (shrink, grow, seal).
 * total_bytes is rounded up to pages. On success *fd and the mapping are the caller's
 * (arena_unmap, close). ERR_INVALID, ERR_MEMORY, ERR_SYSTEM. */
int arena_create(struct arena *arena, uint64_t total_bytes, uint32_t submission_entries, int *fd,
                 struct error *error);

/* Daemon: check size against limit_bytes, seals, kind of memory, header and geometry; map it. The
 * fd may be closed afterwards. ERR_PROTOCOL (with what is wrong), ERR_MEMORY (over the limit),
 * ERR_SYSTEM. */
int arena_attach(struct arena *arena, int fd, uint64_t limit_bytes, struct error *error);

/* Daemon: arena_attach on memory that is already mapped; for tests and for arena_attach itself. */
int arena_attach_memory(struct arena *arena, void *base, uint64_t total_bytes, struct error *error);
/* Lay an arena out in zeroed memory; arena_create uses it. */
int arena_format(struct arena *arena, void *base, uint64_t total_bytes, uint32_t submission_entries,
                 struct error *error);

void arena_unmap(struct arena *arena);
/* Worker: make the memory this process's own from now on, at the same place and with its content:
 * nobody else sees what this process writes there, and a process that it forks inherits the memory
 * as any other. is_mapped: false in a process that was forked without the mapping. Where this
 * process has written nothing since, writes of other processes may still show. Where the system has
 * no room for the mapping, nothing changes. */
void arena_make_private(const struct arena *arena, int fd, bool is_mapped);

/* Worker: false when the submission ring is full. */
bool arena_push_submission(struct arena *arena, const struct arena_submission *submission);
/* Worker: false when the completion ring is empty. */
bool arena_pop_completion(struct arena *arena, struct arena_completion *completion);
/* Worker: how many entries the submission ring has room for. */
uint32_t arena_submission_room(const struct arena *arena);

/* Daemon: 1 with an entry, 0 when the ring is empty, ERR_PROTOCOL when the worker's tail makes no
 * sense. */
int arena_pop_submission(struct arena *arena, struct arena_submission *submission);
/* Daemon: how many entries there are to pop, or to be refused; more than the ring has there cannot
 * be. */
uint32_t arena_submissions_waiting(const struct arena *arena);
/* Daemon: whether less than half of the completion ring waits to be read: room for ARENA_STABLE. */
bool arena_has_room_for_news(const struct arena *arena);
/* Daemon: false when the completion ring is full, which a well-behaved worker never lets it be. */
bool arena_push_completion(struct arena *arena, const struct arena_completion *completion);

/* Sleeping protocol, symmetric. prepare: announce sleep; true when there is something to read after
 * all (then the word is cleared again and the caller must not sleep). cancel: awake again.
 * needs_doorbell: to be asked after pushing; true when the other side sleeps (and clears the word,
 * so that one doorbell is enough). The name says who sleeps: the worker asks
 * arena_daemon_needs_doorbell, the daemon arena_worker_needs_doorbell. */
bool arena_daemon_prepare_sleep(struct arena *arena);
void arena_daemon_cancel_sleep(struct arena *arena);
bool arena_worker_prepare_sleep(struct arena *arena);
void arena_worker_cancel_sleep(struct arena *arena);
bool arena_daemon_needs_doorbell(struct arena *arena);
bool arena_worker_needs_doorbell(struct arena *arena);

/* Daemon: say whether it wants to be told of copies (ARENA_COPIED). */
void arena_set_tracing(struct arena *arena, bool tracing);
/* Worker: whether the daemon wants to be told of copies. */
bool arena_tracing(const struct arena *arena);

/* Whether [offset, offset + bytes) lies in the data area and offset is aligned. No overflow. */
bool arena_range_valid(const struct arena *arena, uint64_t offset, uint64_t bytes);

#endif
