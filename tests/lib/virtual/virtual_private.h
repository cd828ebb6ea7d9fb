/* Declarations that the files of the virtual cluster share. */
#ifndef TESTS_LIB_VIRTUAL_VIRTUAL_PRIVATE_H
#define TESTS_LIB_VIRTUAL_VIRTUAL_PRIVATE_H

#include <check.h>

#include "common/config/config.h"
#include "common/format/message.h"
#include "common/memory/buffer.h"
#include "common/transport/transport.h"
#include "common/transport/transport_memory.h"
#include "server/coordinator/coordinator.h"
#include "server/exchange/exchange.h"
#include "server/jobs/conversation.h"
#include "server/jobs/membership.h"
#include "tests/lib/virtual/virtual_cluster.h"
#include "worker/progress/progress.h"
#include "worker/request/arena_heap.h"

/* Check's own assertions write to a file each time that they hold; these are asked millions of
 * times. */
#define EXPECT_MSG(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg(__VA_ARGS__);                                                             \
    } while (0)
#define EXPECT(condition) EXPECT_MSG(condition, "%s", #condition)

#define VIRTUAL_NODES_MAX 16
#define VIRTUAL_JOBS_MAX 512 /* each generation is one */
#define VIRTUAL_GROUPS_MAX 8
#define VIRTUAL_ARENA_BYTES (4u << 20)

typedef void virtual_happen(struct virtual_cluster *cluster, void *what, uint64_t number);

/* Something that happens at a time, at a daemon (node) or elsewhere (NULL). */
struct virtual_happening {
    uint64_t time_ns;
    uint64_t order;
    virtual_happen *happen;
    void *what;
    uint64_t number;
    struct virtual_node *node;
};

struct virtual_happenings {
    struct virtual_happening *items;
    uint32_t count, capacity;
};

/* Keeps what goes one way in order. */
struct virtual_channel {
    uint64_t last_ns;
    struct virtual_node *node; /* whose daemon takes what comes out; NULL: a worker does */
};

enum virtual_link_state { LINK_NONE, LINK_TRYING, LINK_OPEN };

/* A daemon's side of the control connection with another one. */
struct virtual_link {
    struct virtual_node *node;
    uint32_t peer;
    enum virtual_link_state state;
    uint64_t connection; /* its number, the same on both sides; 0: none */
    /* A newer connection, which waits for word on this one; 0: none. */
    uint64_t claim, claim_incarnation, claimed_ns;
    uint64_t claim_session, claim_heard;
    uint64_t offered; /* the session that this side has said it can go on with, while trying */
    struct conversation conversation;
};

/* Another daemon, as the engine sees it. */
struct virtual_peer {
    bool connected, up;
    uint64_t connect_ns;
    uint64_t token;      /* of the connection that is wanted or there */
    uint32_t connection; /* how many there were; of the receives */
    struct engine_peer_connect request;
    bool requested; /* it waits for the other side's engine to expect it */
};

struct virtual_node {
    struct virtual_cluster *cluster;
    uint32_t number;
    struct config config;
    const char *names[VIRTUAL_NODES_MAX]; /* in the config */
    bool alive;                           /* there is a daemon */
    bool off;                             /* there is not even a machine */
    bool paused;                          /* the daemon stands still */
    bool still;                           /* its fabric does */
    uint64_t incarnation;
    struct virtual_happenings waiting; /* while it is paused */
    uint64_t update_ns, update_number; /* when the control thread is to look what is due */
    struct membership membership;
    struct coordinator *coordinator;
    struct transport *transport;
    struct buffer_pool *pool;
    struct exchange *exchange;
    struct virtual_channel commands, events; /* to and from the engine */
    struct virtual_channel to[VIRTUAL_NODES_MAX];
    struct virtual_link links[VIRTUAL_NODES_MAX];
    struct virtual_peer peers[VIRTUAL_NODES_MAX];
    bool refuses_memory;
    uint32_t late_reports, losses;
    uint32_t resumed; /* connections that went on where one before had ended */
    uint32_t traces;  /* begun; virtual_trace.c */
    bool quiet;       /* nothing happened in the last one */
    struct virtual_traffic traffic;
};

struct virtual_worker;

struct virtual_job_run {
    struct virtual_job job;
    uint64_t job_id; /* 0: no rank has joined */
    uint32_t generation;
    bool later; /* than the first generation: the workers come when they hear that they are in it */
    uint32_t *rank_nodes;
    struct virtual_worker **workers; /* [ranks]; those that have gone on are in the next ones too */
    struct script *script;           /* [collectives] */
    uint32_t **group_ranks;          /* [groups + 1] */
    uint32_t *group_sizes;
};

struct virtual_cluster {
    struct virtual_options options;
    uint64_t now_ns;
    uint64_t random;
    uint64_t order;
    uint64_t moments;
    struct virtual_happenings heap;
    struct memory_fabric *fabric;
    struct virtual_node nodes[VIRTUAL_NODES_MAX];
    bool severed[VIRTUAL_NODES_MAX][VIRTUAL_NODES_MAX]; /* [smaller][larger] */
    bool starting;                                      /* commands are carried out at once */
    uint64_t connections, incarnations;
    struct virtual_job_run jobs[VIRTUAL_JOBS_MAX];
    uint32_t job_count;
    uint32_t next_handle;
    uint32_t silences;
};

/* virtual_time.c */
uint64_t virtual_random(struct virtual_cluster *cluster, uint64_t below);
/* happen() is called at a daemon that is not alive, too: then it is to give back what it carries,
 * and to do nothing else. */
void virtual_schedule(struct virtual_cluster *cluster, struct virtual_node *node, uint64_t delay_ns,
                      virtual_happen *happen, void *what, uint64_t number);
/* After a random delay, and after all that went into the channel before. */
void virtual_schedule_in(struct virtual_cluster *cluster, struct virtual_channel *channel,
                         virtual_happen *happen, void *what, uint64_t number);
uint64_t virtual_time_next_ns(const struct virtual_cluster *cluster);
/* Let the next thing happen, or keep it for a daemon that is paused. */
void virtual_time_step(struct virtual_cluster *cluster);
/* Let everything that was kept for the daemon happen now. */
void virtual_time_go_on(struct virtual_node *node);
/* Whether this has come to the daemon, and it has only not looked at it yet. */
bool virtual_time_is_due(const struct virtual_node *node, virtual_happen *happen,
                         bool (*matches)(const void *what, uint64_t number), uint64_t number);
/* All that was to happen at the daemon happens; whether there was anything. */
bool virtual_time_drain(struct virtual_node *node);

/* virtual_daemon.c: daemons that begin, end, stand still */
/* Again: with a new incarnation. */
void virtual_daemon_begin(struct virtual_node *node);
/* End the daemon, which has ended by itself or dies. Nobody hears of it from the daemon; what it
 * had is freed. */
void virtual_daemon_end(struct virtual_node *node);
void virtual_daemon_configure(struct virtual_node *node);

/* virtual_engine.c: what stands in for the engine's thread */
struct exchange_io virtual_engine_io(struct virtual_node *node);
struct buffer_pool_io virtual_engine_pool_io(struct virtual_node *node);
uint64_t virtual_engine_silence_ns(const struct virtual_node *node);
void virtual_engine_tick(struct virtual_cluster *cluster, void *what, uint64_t number);
/* Whether the transport had anything to say. */
bool virtual_engine_poll(struct virtual_node *node);
void virtual_engine_command(struct virtual_node *node, const struct engine_command *command);

/* virtual_world.c */
struct coordinator_io virtual_world(struct virtual_node *node);
/* To the engine, in order, later. */
void virtual_command(struct virtual_node *node, const struct engine_command *command);
/* Something was called: what is due may have changed. */
void virtual_called(struct virtual_node *node);
/* Takes the event to the control thread, later. */
void virtual_event(struct virtual_node *node, struct engine_event *event);

/* virtual_link.c: control connections */
/* Open a connection that is there from the beginning. */
void virtual_link_begin(struct virtual_node *low, struct virtual_node *high);
/* A line to another daemon. */
void virtual_link_send(struct virtual_node *node, uint32_t peer, const struct message *message);
/* Attempts, heartbeats and silence, as due. */
void virtual_link_due(struct virtual_node *node);
/* ENGINE_PEER_UP and ENGINE_PEER_DOWN. */
void virtual_link_engine_event(struct virtual_node *node, const struct engine_event *event);
/* The daemon is gone: its sockets end, or (silently) do not. */
void virtual_link_drop_all(struct virtual_node *node, bool silently);

/* virtual_trace.c: every other while each exchange takes a trace of some job. */
void virtual_trace_tick(struct virtual_cluster *cluster, void *what, uint64_t number);
/* Takes an ENGINE_TRACED, and looks at what was recorded. */
void virtual_trace_over(struct virtual_node *node, struct engine_event *event);

/* virtual_script.c: a job's collectives, from its seed. */
/* One collective of a job, the same for all ranks, or a send. */
struct script {
    uint32_t group;         /* index of the job's groups; 0: the world */
    struct request_ask ask; /* count: of each part, at most, in a collective of parts */
    /* A send goes from the place that is the root to this one; the tag, and how many go there with
     * it before. */
    uint32_t to, tag, number;
    bool uneven; /* the parts have different sizes, some are empty */
    uint64_t seed;
};

void script_write(struct virtual_job_run *run);
/* A rank's place in a group of the job, or -1. */
int64_t script_place(const struct virtual_job_run *run, uint32_t group, uint32_t rank);
/* Whether the rank has a part in it. */
bool script_takes_part(const struct virtual_job_run *run, const struct script *it, uint32_t rank);
/* Elements that go from one place to another; of the whole, in what does not travel in parts. */
uint64_t script_count(const struct script *it, uint32_t from, uint32_t to);
/* Fill `data` with what the rank at place `from` gives for the one at `to`. */
void script_input(const struct script *it, uint32_t from, uint32_t to, void *data);
/* The reduction that the rank at this place gets: in rank order on each node, in node order over
 * the nodes. */
void script_reference(const struct virtual_job_run *run, const struct script *it, uint32_t to,
                      void *result);

/* virtual_flight.c: one collective under way at a rank */
struct flight_region {
    uint8_t *memory;
    uint64_t arena_offset; /* 0: from malloc */
    size_t bytes;
};

struct flight_side {
    uint32_t region;
    uint32_t parts;
    bool apart;     /* each part has a place of its own */
    size_t *at;     /* [parts]: in the region */
    size_t *counts; /* [parts]: elements */
    void **buffers; /* [parts] */
};

struct flight {
    struct request request; /* first */
    struct flight *next;
    const struct script *it;
    struct script other; /* what a rank that is misled asks for in its place */
    uint32_t script;     /* its number */
    uint32_t place;      /* of the rank in the group */
    struct flight_side send, recv;
    struct flight_region regions[2];
    uint64_t bounce; /* of a send or receive whose region is not in the arena: a place that is */
};

enum worker_state { JOINING, OPENING, RUNNING, RELEASING, LEAVING, ENDED };

struct virtual_worker {
    struct virtual_cluster *cluster;
    struct virtual_job_run *run;
    struct virtual_node *node;
    struct exchange_worker *attached; /* the daemon's side */
    uint32_t rank, handle;
    uint64_t incarnation; /* of the daemon that it is connected with */
    enum worker_state state;
    uint64_t heard_ns, pinged_ns; /* pinged: the daemon's answer is awaited; 0: it is not */
    uint64_t watch;               /* the number of the watch over the daemon that counts */
    /* Where it goes on from: the generation that it was in (NULL: none), and as which rank; of that
     * how many collectives it has, and was told to be stable. */
    const struct virtual_job_run *before;
    uint32_t rank_before;
    uint64_t kept, told;
    bool newcomer;       /* it has had no rank yet */
    uint32_t former;     /* its handle, where it has joined last */
    uint64_t lineage;    /* of the job, then */
    uint64_t restart_ns; /* until when it waits for a daemon */
    struct virtual_channel to, from;
    uint8_t *memory;
    struct arena arena;
    struct arena_heap heap;
    struct progress progress;
    bool progressing;
    struct progress_group groups[VIRTUAL_GROUPS_MAX];
    uint64_t stable[VIRTUAL_GROUPS_MAX]; /* that it was told, for each of these */
    uint32_t *weights[VIRTUAL_GROUPS_MAX];
    uint64_t own[VIRTUAL_GROUPS_MAX]; /* the group's own slot in the arena */
    uint32_t opened;                  /* groups so far */
    uint32_t next_script[VIRTUAL_GROUPS_MAX];
    uint32_t in_flight[VIRTUAL_GROUPS_MAX];
    struct flight *flights;
    uint32_t started, finished, mine; /* collectives; mine: that this rank takes part in */
    uint32_t leave_after;
    bool held, mislead, mislead_send, pump_due, late_due;
    uint32_t refused; /* sends and receives that did not fit */
    int code;
    char text[ERROR_TEXT_BYTES];
    uint64_t digest;
};

/* Start the collective of this number; misled if the worker is. Returns progress_submit's. */
int flight_start(struct virtual_worker *worker, uint32_t script, struct error *error);
/* All memory of a completed one is as it must be. */
void flight_check(struct virtual_worker *worker, const struct flight *flight);
void flight_free(struct virtual_worker *worker, struct flight *flight);

/* virtual_session.c: what a worker and its daemon say to each other */
void virtual_session_join(struct virtual_cluster *cluster, void *worker, uint64_t number);
/* Its daemon has let go of its arena. */
void virtual_session_released(struct virtual_worker *worker);
void virtual_session_leave(struct virtual_worker *worker);
/* The worker's process is gone: its socket ends. */
void virtual_session_end(struct virtual_worker *worker);
/* The daemon is gone: all workers of its node hear so. */
void virtual_session_lose_all(struct virtual_node *node);
/* From the daemon to a worker, by its handle. */
void virtual_session_message(struct virtual_cluster *cluster, uint32_t handle,
                             const struct message *message);
void virtual_session_end_worker(struct virtual_cluster *cluster, uint32_t handle);

/* virtual_worker.c: its arena and its work */
void virtual_worker_attach(struct virtual_node *node, uint64_t job, uint32_t rank, uint32_t handle);
/* The daemon pushed completions, or lets go of the arena. */
void virtual_worker_rung(struct virtual_cluster *cluster, struct exchange_worker *worker);
/* The daemon tells it what is stable: no daemon of the cluster lacks any of that. */
void virtual_worker_told_stable(struct exchange_worker *worker,
                                const struct arena_completion *completion);
void virtual_worker_released(struct exchange_worker *worker);
/* Let the worker begin with its first group, or with a further one. */
void virtual_worker_begin(struct virtual_worker *worker, const struct message *message);
/* All that was under way has failed: nothing of it is left, nor any group but the first. */
void virtual_worker_clear(struct virtual_worker *worker);
/* The daemon has let go of the arena: it is as if new. */
void virtual_worker_format(struct virtual_worker *worker);
void virtual_worker_add_group(struct virtual_worker *worker, const struct message *message);
void virtual_worker_pump_soon(struct virtual_worker *worker, uint64_t most_ns);
/* All that it has under way fails, in one group or (-1) in all. */
void virtual_worker_fail(struct virtual_worker *worker, int32_t group, int code, const char *text);
/* The first failure is the worker's. */
void virtual_worker_failed(struct virtual_worker *worker, int code, const char *text);

/* virtual_generation.c: jobs that go on */
struct virtual_job_run *virtual_generation_find(struct virtual_cluster *cluster, uint64_t job_id);
/* A daemon's engine opens it: the first, or as the others. */
void virtual_generation_opens(struct virtual_cluster *cluster, const struct engine_job *roster);
/* Its generation has failed. */
void virtual_generation_leave(struct virtual_worker *worker);
void virtual_generation_enter(struct virtual_worker *worker, const struct message *joined);

/* virtual_job.c */
/* Make what the job, its ranks and their nodes determine: the script, and room for the workers. */
void virtual_job_write(struct virtual_job_run *run);
/* How many collectives the worker takes part in: `mine`. */
void virtual_job_count(struct virtual_worker *worker);
/* The rank of this generation; NULL: it has gone on to the next, or not come to this one. */
struct virtual_worker *virtual_job_present(const struct virtual_job_run *run, uint32_t rank);
struct virtual_worker *virtual_job_worker(const struct virtual_cluster *cluster, uint32_t handle);
/* The node's ranks are gone, and their daemon does not hear of it. */
void virtual_jobs_kill_on(struct virtual_node *node);
void virtual_jobs_free(struct virtual_cluster *cluster);
/* Print where every worker is: for a test that is about to fail. */
void virtual_jobs_describe(const struct virtual_cluster *cluster);
/* All have ended: those that have not failed have done all that they were to do. */
void virtual_jobs_check_ended(const struct virtual_cluster *cluster);

#endif
