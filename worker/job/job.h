/* The structs behind the opaque handles of worker/shoal.h. Internal to the library.
 *
 * One lock a job guards everything below it, for short sections only. One thread at a time has the
 * role of the driver (worker/drive/drive.h). Requests are counted: one reference is the caller's,
 * one the library's until the request is complete.
 *
 * Calls worker/{device,progress,request}, client.h, shared.h and common/.
 */
#ifndef WORKER_JOB_JOB_H
#define WORKER_JOB_JOB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/hash.h"
#include "common/format/arena.h"
#include "worker/device/device_queue.h"
#include "worker/job/client.h"
#include "worker/meeting/meeting.h"
#include "worker/progress/progress.h"
#include "worker/request/arena_heap.h"
#include "worker/request/request.h"
#include "worker/shoal.h"

/* How much longer than the daemon, which can say who is missing, the library waits. */
#define JOB_GRACE_MS 1000u
/* Collectives of reconfigure_agree, with which a later generation begins. */
#define JOB_AGREEING 3u
/* How long shoal_close waits for the daemon's goodbye. */
#define JOB_LEAVE_MS 5000u

struct shoal_request {
    struct request core; /* first: a struct request of this library is always one of these */
    struct shoal_job *job;
    struct device_ticket ticket; /* on a device */
    unsigned references;
    bool background; /* the background thread must see to it */
    bool told;       /* complete, and the callback called if there was one by then */
    void (*callback)(void *argument, int result);
    void *callback_argument;
    uint64_t bounce_offset;            /* arena memory that a transfer goes through, or 0 */
    int *source;                       /* where a receive from any rank says who it was, or NULL */
    struct shoal_request *prev, *next; /* of the job */
    struct shoal_request *called_next; /* callbacks to be called */
};

/* Settings of one thread for the collectives that it starts on a group. */
struct group_settings {
    pthread_t thread;
    uint64_t mark; /* of the thread; when it now has another, the one that set this is gone */
    uint32_t priority;
    uint32_t identity;
    bool on_device;
    void *stream;
};

/* How many transfers there have been between this rank and a peer, one way, with one tag. */
struct transfer_counter {
    struct transfer_key {
        uint32_t peer, tag;
        uint32_t receive; /* 0 or 1 */
    } key;
    uint32_t next;
    UT_hash_handle hh;
};

/* A group_open, shared_open or meeting_open that has been sent and not answered. Lies on the stack
 * of the caller, or in a group's place. */
struct group_opening {
    uint32_t request;
    enum message_type wanted; /* the good answer */
    bool answered;
    int descriptor;        /* of shared_opened: the caller's; else -1 */
    struct error error;    /* what the daemon refused it with; code 0: it did not */
    struct message answer; /* when it did not: as wanted */
    struct group_opening *prev, *next;
};

/* Where the ranks of a group that lies on this node meet (worker/meeting). */
enum place_state { PLACE_UNASKED, PLACE_ASKING, PLACE_OPEN, PLACE_NONE };

/* Given back when nobody is at it any more. */
struct place_memory {
    void *memory;
    uint64_t bytes;
    unsigned visitors; /* threads that look at it without the lock */
    unsigned waiters;  /* of those, who waits for a request there */
    bool forgotten;    /* by the group */
};

struct place {
    enum place_state state;
    struct group_opening opening; /* ASKING */
    struct meeting meeting;       /* OPEN, and its memory */
    struct place_memory *memory;
    struct meeting_ask ask; /* of core.meeting, the first, and these two: its round, and since when
                             * it is known to wait, or 0 */
    uint64_t round, since_ns;
};

struct shoal_group {
    struct progress_group core;
    struct shoal_job *job;
    uint32_t rank, size;
    int *ranks;                      /* [size], of the job; NULL: all of them */
    uint64_t identity;               /* the same on all ranks, as long as it is open; not 0 */
    uint32_t *weights;               /* what core.rule.weights points to */
    struct group_settings *settings; /* of the threads that have set any */
    size_t settings_count;
    struct transfer_counter *transfer_counters;
    uint32_t shared_count; /* pieces of shared memory asked for so far */
    uint32_t fusion_count;
    uint32_t fusions_made; /* freed ones too: ranks free them when they like, and number alike */
    struct place place;
    struct shoal_group *prev, *next;
};

/* Memory that the daemon writes results to, and the group's ranks on this node read. */
struct shared_memory {
    struct shoal_group *group;
    uint32_t number; /* the daemon's */
    const uint8_t *base;
    uint64_t bytes;
    struct shared_memory *prev, *next; /* of the job */
};

/* A rank of this node holds up a collective that all ranks have come to at their place. */
struct job_hold {
    bool due; /* the daemon is to be told */
    uint32_t group, rank;
    uint64_t number;  /* of the collective, as ranks count */
    uint64_t said_ns; /* when the daemon was told the last time, or 0 */
};

/* How many groups with one list of ranks have been asked for. */
struct group_list {
    int *ranks;
    int count;
    uint32_t times;
    struct group_list *next;
};

enum job_driver { JOB_DRIVER_NONE, JOB_DRIVER_BACKGROUND, JOB_DRIVER_WAITER };

struct shoal_job {
    pthread_mutex_t lock;
    pthread_cond_t changed;    /* waiters: something is complete, or the driver's role is free */
    pthread_cond_t background; /* the background thread has something to do */
    pthread_mutex_t send_lock; /* of the socket's sending side; taken without `lock` */
    pthread_t thread;
    pid_t pid;
    bool forked; /* a forked child's copy of its parent's */
    bool thread_started;

    /* Read without the lock, too, by calls that tell of them. */
    atomic_int rank, world_size, local_rank, local_size, node_count;
    atomic_uint generation;
    char name[64];
    uint64_t lineage;             /* the id of its first generation */
    uint32_t numbered;            /* the generation in which the collectives of the group of all
                                   * ranks are counted from 0 */
    uint32_t unsettled;           /* the generation of which the survivors have to agree what they
                                   * have; 0: none */
    uint64_t kept_collectives;    /* of it: the first ones, which this rank has */
    uint64_t settled_collectives; /* of the one that was agreed on last: those that all have */
    uint64_t settled_number;      /* and how many there were before it, since the job began */
    uint64_t got_collectives; /* what shoal_job_reconfigure says of them, with those of generations
                               * that it has agreed on before, and not told of: it went on */
    uint64_t first_number;    /* of the program's first collective since `numbered`, likewise */
    int replay_from;          /* the rank whose daemon had what was replayed last */
    int64_t agreement[2]; /* what a request of shoal_job_reconfigure sums, even if it is given up */
    int timeout_ms;

    struct client client;
    struct arena arena;
    struct arena_heap heap;
    struct progress progress;
    struct kept_memory kept_memory; /* of collectives that may be begun again */
    unsigned allocations; /* of shoal_alloc that are not given back: they keep the arena, the heap,
                           * the lock and this structure */
    bool closed;          /* nothing else is left of it */
    uint64_t pinned_most; /* bytes of the arena that the daemon lets a device pin */
    struct device_queue *device; /* or NULL */
    bool device_opening;         /* a call opens it, without the lock */
    bool device_stuck;           /* the device may still use the arena: both stay until the process
                                  * ends */
    int submission_doorbell;     /* an eventfd shared with the daemon */
    int completion_doorbell;     /* a socket that the daemon has made, and rings; -1: not joined, or
                                  * the daemon has closed its end */
    int wake_fd;                 /* wakes the driver */
    int listen_fd;               /* wakes the background thread that listens */
    int completions_fd;          /* the caller's */
    int arena_fd;                /* for the daemon, each time that the job is joined */
    bool completions_used;       /* somebody asked for completions_fd */

    enum job_driver driver;
    bool driver_sleeping;
    unsigned waiters;
    unsigned claims;              /* threads that have asked for the driver's role, before all */
    unsigned calls;               /* in the library, between job_enter and job_leave */
    unsigned background_requests; /* incomplete ones that the background thread must see to */
    bool listening;               /* the background thread, for want of a driver */
    bool stop;                    /* of the background thread */
    bool closing;                 /* every waiter is to return */
    bool abrupt;                  /* closed while other ranks need this one at a place: they wait
                                   * for no goodbye, but for the daemon to say that it is gone */
    bool ending;                  /* the daemon knows why this process ends: no goodbye either */
    uint32_t restart_ms;          /* a daemon that has ended may be started again within; 0: it is
                                   * lost. No longer than this after it was missed */
    uint32_t member;              /* what the daemon calls the connection */
    uint32_t asked_member;        /* and what the last one that was asked to join called it */
    bool agreed;                  /* this generation began with shoal_job_reconfigure */
    bool reconfiguring;           /* a call of shoal_job_reconfigure: the program goes on */
    bool resuming;                /* the background thread goes on; nobody else drives */
    bool apart;                   /* the daemon has let go of the arena, of the last generation */
    bool mute;                    /* send_lock: the socket is the conversation's of job_rejoin */
    uint32_t losses;              /* how often the job has failed, and its requests have not */
    unsigned sayings;             /* messages about this generation that are on their way */
    struct error resume_cause;    /* resuming: why */
    bool daemon_gone;             /* or counts as gone: nothing is read from it, or sent to it */

    /* Whether the daemon lives, while somebody waits for it (worker/drive/drive_socket.c). */
    uint64_t silence_ns;  /* after so long a silence it does not; its own figure for its peers */
    uint64_t heard_ns;    /* when it gave the last sign of life */
    uint64_t pinged_ns;   /* when it was asked for a sign of life, or 0 */
    bool ping_owed;       /* it was to be asked, but another thread was sending */
    uint64_t listened_ns; /* when the socket was last read though nobody waited for the daemon */
    bool socket_read;     /* lines that came along with `joined` have been looked at */

    struct shoal_group *groups; /* the first is the world */
    struct shoal_request *requests;
    struct group_opening *openings;
    struct group_list *group_lists;
    struct shared_memory *shared;
    struct job_hold hold;
    uint64_t said_waiting_ns; /* when the user heard last that a transfer waits; 0: never */
    uint32_t next_opening;
    int cores;                    /* that this process may run on */
    uint64_t shared_ns;           /* when it was first seen to share its core, or looked last; 0 */
    uint64_t looked_ns;           /* when it last looked for one with fewer ranks, */
    uint64_t look_after_ms;       /* and how long after shared_ns it does; 0: not known yet */
    uint64_t keep_until_ns;       /* the background thread looks after requests at meeting places */
    uint64_t passed_ns;           /* when the last one that passes in pieces was begun there, */
    bool waits_soon;              /* and whether its caller waited at once */
    struct shoal_group *watched;  /* at whose place it waits, while there are any, or NULL */
    _Atomic uint32_t *gate;       /* at which it sleeps now (worker/meeting), or NULL */
    struct shoal_fusion *fusions; /* freed with the job */

    bool open; /* in the list of worker/job/forking.c, whose these are */
    struct shoal_job *prev_open, *next_open;
};

/* How to join a job. */
struct job_settings {
    char name[64];
    char socket_path[CLIENT_PATH_BYTES];
    bool socket_given;    /* somebody has named it; else it is the default */
    int rank, local_rank; /* -1: unknown */
    int world_size;
    int timeout_ms;
    uint64_t deadline_ns; /* by which the job is joined, or not */
    uint64_t arena_bytes;
    bool newcomer; /* rank and world_size are not known */
    int recovery;  /* of shoal_options */
    uint32_t mark; /* of the run whose job it is; 0: not known */
};
/* Connect, join and set everything up except the background thread. The codes are those of
 * shoal_open. */
int job_create(struct shoal_job **job, const struct job_settings *settings, struct error *error);
/* Free everything but memory of shoal_alloc that has not been given back. Nothing may be using the
 * job any more. */
void job_destroy(struct shoal_job *job);
/* Give a piece of memory back; with the last one of a job that is closed, the rest of the job goes.
 * Memory that is no piece is ignored. `lock` is not held. */
void job_free(struct shoal_job *job, const void *memory);

/* ERR_STATE in a forked child, which must not use its parent's job; ERR_INVALID for NULL. */
int job_check(const struct shoal_job *job, struct error *error);
/* ERR_INVALID for a group that is NULL. */
int group_check(const struct shoal_group *group, struct error *error);

/* Copy what a caller of whatever version has given, or NULL for nothing, into *options, `bytes`
 * that are 0. `given` is a struct `name`, which begins with its size, struct_size: ERR_INVALID when
 * that is below least_bytes. */
int options_read(void *options, size_t bytes, const void *given, size_t least_bytes,
                 const char *name, struct error *error);

/* Begin a call that uses the job, or what is freed with it, while `lock` is not held: shoal_close
 * then waits for job_leave. ERR_STATE in a forked child, and when the job is being closed. Calls
 * may contain others. `lock` is not held. */
int job_enter(struct shoal_job *job, struct error *error);
void job_leave(struct shoal_job *job);

/* Send under the send lock. `lock` is not held. ERR_AGAIN: the job goes on just now, and what was
 * to be said was about the last generation. */
int job_send(struct shoal_job *job, const struct message *message, uint64_t deadline_ns,
             struct error *error);
/* To whoever listens at the path of the socket now: connect, and say who we are. The connection
 * before has ended. `lock` is not held, and the caller drives. */
int job_connect_anew(struct shoal_job *job, uint64_t deadline_ns, struct error *error);
/* The first message of that daemon. It is cleared. */
int job_take_hello(struct shoal_job *job, struct message *answer, struct error *error);
/* Around a job_send of what holds of this generation only, if the lock was held when it was made:
 * the library does not go on to the next one before it is said. Lock held. */
void job_begin_saying(struct shoal_job *job);
void job_end_saying(struct shoal_job *job);
/* Lock held, and let go of meanwhile; for as long as job_send takes at most. */
void job_await_sayings(struct shoal_job *job);
/* Tell the daemon why this process is about to end. It may not arrive. */
void job_say_ending(struct shoal_job *job, const char *why);
/* Send at once or not at all. False: another thread is sending. */
bool job_send_now(struct shoal_job *job, const struct message *message);

/* Absolute time for a timeout_ms of the API, -1 being the job's. */
uint64_t job_deadline_ns(const struct shoal_job *job, int timeout_ms);

/* How many times this list of ranks has been asked for in this generation; counts this time. Lock
 * held. ERR_MEMORY. */
int job_count_list(struct shoal_job *job, const int *ranks, int count, uint32_t *times,
                   struct error *error);
/* The daemon refused: the list may be asked for again under the same number, which is what ranks do
 * that have not asked yet. Lock held. */
void job_uncount_list(struct shoal_job *job, const int *ranks, int count, uint32_t nth);

/* Make a group of what the daemon answered (joined or group_opened); lock held. ERR_MEMORY,
 * ERR_PROTOCOL. */
int job_add_group(struct shoal_job *job, const struct message *answer, uint32_t rank, uint32_t size,
                  struct shoal_group **group, struct error *error);
/* Make the group of all ranks that of the next generation; lock held. ERR_MEMORY, ERR_PROTOCOL. */
int job_renew_world(struct shoal_job *job, const struct message *joined, struct error *error);
/* How the group's buffers are cut, as the daemon answered; lock held. ERR_MEMORY, ERR_PROTOCOL. */
int job_renew_rule(struct shoal_group *group, const struct message *answer, struct error *error);
/* How often lists of ranks have been asked for is counted anew; lock held. */
void job_forget_lists(struct shoal_job *job);
/* Take the doorbell that came with `joined`, in place of the last one; lock held, unless nobody
 * else has the job. ERR_PROTOCOL: none came. */
int job_take_bell(struct shoal_job *job, struct error *error);
/* Keep what the daemon said about this rank. */
void job_set_place(struct shoal_job *job, const struct message *joined);
/* Where the group's ranks meet is given back; lock held. */
void job_forget_place(struct shoal_group *group);
/* A thread looks at the memory without the lock, until it leaves; lock held at both. */
void job_visit_place(struct place_memory *memory);
void job_leave_place(struct place_memory *memory);
/* Free a group that has no incomplete request; lock held. */
void job_remove_group(struct shoal_job *job, struct shoal_group *group);

/* Condition of a wait: whether the struct shoal_request is complete; lock held. */
bool job_request_complete(const void *request);
/* Return 0 for a complete request, or its failure with the words. */
int job_request_result(const struct shoal_request *request, struct error *error);
/* Drop a reference; lock held. */
void job_release_request(struct shoal_job *job, struct shoal_request *request);

/* Memory of the arena, at *offset; lock held. ERR_MEMORY says how full the arena is. */
int job_allocate(struct shoal_job *job, uint64_t bytes, uint64_t *offset, struct error *error);

#endif
