/* What the files of server/coordinator share, and nobody else includes. */
#ifndef SERVER_COORDINATOR_COORDINATOR_INTERNAL_H
#define SERVER_COORDINATOR_COORDINATOR_INTERNAL_H

#include <uthash.h>
#include <utlist.h>

#include "server/coordinator/coordinator.h"

#define COORDINATOR_MS 1000000ull
/* The other side's own deadline comes first; its words say more. */
#define COORDINATOR_GRACE_NS (1000 * COORDINATOR_MS)
#define COORDINATOR_OPEN_LEAST_MS 2000u
/* Within which all daemons have opened a group whose ranks have all come. */
#define COORDINATOR_GROUP_OPEN_MS 60000u
#define COORDINATOR_LATE_ASKS_MAX 1024u

enum worker_state {
    WORKER_JOINING, /* waits for the job's home */
    WORKER_OPENING, /* has a rank; the job's daemons are getting ready */
    WORKER_JOINED,
    WORKER_LEAVING, /* the engine lets go of its arena */
};

/* A group_open that waits for its answer. */
struct worker_group_request {
    uint32_t request;
    uint32_t nth;
    uint32_t *ranks;
    uint32_t count;
    uint64_t deadline_ns;
    struct worker_group_request *next, *prev;
};

/* A connection that has sent join. */
struct worker {
    uint32_t id;
    uint32_t uid, pid;
    enum worker_state state;
    char name[MESSAGE_NAME_BYTES]; /* of the job */
    uint32_t world_size;
    int32_t wished_rank, wished_local_rank;
    uint32_t home;
    bool asked; /* home has our job_join */
    bool gone;  /* closed its socket while leaving */
    uint64_t deadline_ns;
    struct job *job; /* from WORKER_OPENING on */
    uint32_t rank;
    uint32_t local_rank; /* from WORKER_JOINED on */
    struct worker_group_request *requests;
    UT_hash_handle hh; /* by id */
};

struct queued_message {
    struct message message;
    struct queued_message *next, *prev;
};

/* Another daemon wants to know which of our ranks are late. */
struct late_ask {
    uint64_t job;
    uint32_t group;
    uint64_t sequence;
    uint32_t node;
    struct late_ask *next, *prev;
};

struct coordinator {
    const struct config *config;
    struct log *log;
    const struct membership *membership;
    struct coordinator_io io;
    uint64_t now_ns;

    struct worker *workers;
    struct job *jobs;
    struct gathering *gatherings;
    struct late_ask *late_asks;
    uint32_t late_ask_count;
    struct queued_message *queue; /* to this daemon itself */

    uint64_t dropped_messages;
    bool draining, stopped;
    uint64_t drain_deadline_ns;
};

/* --- coordinator.c */
const char *coordinator_node_name(const struct coordinator *c, uint32_t node);
/* Why a daemon that drains refuses and ends. */
void coordinator_drain_text(const struct coordinator *c, char text[ERROR_TEXT_BYTES]);
bool coordinator_reaches(const struct coordinator *c, uint32_t node); /* self, or connected */
bool coordinator_is_up(const struct coordinator *c, uint32_t node);   /* self, or up */
/* "server b (127.0.0.1:7701) is not connected: connection refused", or that it is so without the
 * fabric */
void coordinator_unreachable_text(const struct coordinator *c, uint32_t node, char *text,
                                  size_t bytes);
/* To a peer that is reached, or to ourselves; otherwise dropped: its loss is known or will be. */
void coordinator_send(struct coordinator *c, uint32_t node, const struct message *message);
/* To every daemon of the job, ourselves too when `self`. */
void coordinator_send_job(struct coordinator *c, const struct job *job,
                          const struct message *message, bool self);
struct job *coordinator_job(const struct coordinator *c, uint64_t id);
/* After the time asked for (0: none), but not more than the configuration allows. */
uint64_t coordinator_deadline(const struct coordinator *c, uint32_t asked_ms, uint32_t most_ms);
/* Milliseconds that are left, at least 1. */
uint32_t coordinator_left_ms(const struct coordinator *c, uint64_t deadline_ns);
/* After each entry: run the queue, see whether the drain is over. */
void coordinator_settle(struct coordinator *c);
/* A message of ours to node `node` of a job. */
struct message coordinator_job_message(enum message_type type, const struct job *job);
/* code and text into a message. */
void coordinator_message_error(struct message *message, int code, const char *text);

/* --- coordinator_worker.c: the workers of this node */
struct worker *coordinator_worker(const struct coordinator *c, uint32_t id);
void worker_ask_home(struct coordinator *c, struct worker *worker);
/* Answer a join with an error, close, forget. */
void worker_refuse(struct coordinator *c, struct worker *worker, int code, const char *text);
void worker_end(struct coordinator *c, struct worker *worker); /* close and forget */
/* The same, told first that it has left. */
void worker_end_left(struct coordinator *c, struct worker *worker);
void worker_forget(struct coordinator *c, struct worker *worker); /* free it; leaves its job */
void worker_send_failed(struct coordinator *c, struct worker *worker, int64_t group, int code,
                        const char *text);
void worker_send_error(struct coordinator *c, struct worker *worker, uint32_t request, int code,
                       const char *text);
/* Tell the workers here of the ranks of a job that they have joined. */
void workers_send_joined(struct coordinator *c, const struct job *job);
void worker_set_rule(struct message *message, const struct coordinator *c, const struct job *job,
                     const struct group *group);
void worker_request_free(struct worker *worker, struct worker_group_request *request);
void worker_tick(struct coordinator *c, struct worker *worker);
int worker_refused(struct coordinator *c, uint32_t node, const struct message *message,
                   struct error *error);

/* --- coordinator_home.c: jobs that gather here */
int home_job_join(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error);
int home_job_withdraw(struct coordinator *c, uint32_t node, const struct message *message,
                      struct error *error);
int home_job_opened(struct coordinator *c, uint32_t node, const struct message *message,
                    struct error *error);
void home_try_open(struct coordinator *c, struct gathering *gathering);
void home_tick(struct coordinator *c, struct gathering *gathering);
void home_peer_down(struct coordinator *c, uint32_t node);
void home_drain(struct coordinator *c);
uint64_t home_deadline(const struct coordinator *c);

/* --- coordinator_job.c: jobs that are open here. Those marked * may free the job. */
int job_on_open(struct coordinator *c, uint32_t node, const struct message *message,
                struct error *error);
int job_on_ready(struct coordinator *c, uint32_t node, const struct message *message,
                 struct error *error);
int job_on_failed(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error);
int job_on_close(struct coordinator *c, uint32_t node, const struct message *message,
                 struct error *error);
int job_on_rank_left(struct coordinator *c, uint32_t node, const struct message *message,
                     struct error *error);
void job_fail(struct coordinator *c, struct job *job, int code, const char *format, ...) /* * */
    __attribute__((format(printf, 4, 5)));
void job_try_acknowledge(struct coordinator *c, struct job *job);
void job_peer_down(struct coordinator *c, struct job *job, uint32_t node,
                   const char *reason);                /* * */
void job_tick(struct coordinator *c, struct job *job); /* * */
/* The last worker here may have gone: end a failed job. */
void job_worker_removed(struct coordinator *c, struct job *job); /* * */

/* --- coordinator_group.c */
int group_worker_open(struct coordinator *c, struct worker *worker, const struct message *message,
                      struct error *error);
int group_worker_close(struct coordinator *c, struct worker *worker, const struct message *message,
                       struct error *error);
int group_on_join(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error);
int group_on_refused(struct coordinator *c, uint32_t node, const struct message *message,
                     struct error *error);
int group_on_open(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error);
int group_on_opened(struct coordinator *c, uint32_t node, const struct message *message,
                    struct error *error);
int group_on_ready(struct coordinator *c, uint32_t node, const struct message *message,
                   struct error *error);
int group_on_leave(struct coordinator *c, uint32_t node, const struct message *message,
                   struct error *error);
int group_on_close(struct coordinator *c, uint32_t node, const struct message *message,
                   struct error *error);
int group_on_failed(struct coordinator *c, uint32_t node, const struct message *message,
                    struct error *error);
/* The job is ready here, its workers have joined: tell them when its group of all ranks has failed
 * meanwhile. */
void group_job_ready(struct coordinator *c, struct job *job);
/* Home: a rank has left the job, and so its groups. */
void group_rank_gone(struct coordinator *c, struct job *job, uint32_t rank);
void group_tick(struct coordinator *c, struct job *job);
uint64_t group_deadline(const struct job *job);

/* --- coordinator_segment.c: memory that the ranks of a group on this node share */
int segment_worker_open(struct coordinator *c, struct worker *worker, const struct message *message,
                        struct error *error);
int segment_worker_close(struct coordinator *c, struct worker *worker,
                         const struct message *message, struct error *error);
/* The worker is done with all that it shares, in one group or (NULL) in all. */
void segments_leave(struct coordinator *c, struct worker *worker, struct group *group);
/* The group ends, and the engine lets go of them by itself. */
void segments_forget(struct coordinator *c, struct job *job, struct group *group);

/* --- coordinator_late.c */
int late_on_query(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error);
int late_on_reply(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error);
void late_forget_job(struct coordinator *c, uint64_t job);
void late_forget_node(struct coordinator *c, uint32_t node);
void late_tick(struct coordinator *c, struct job *job);
uint64_t late_deadline(const struct job *job);

#endif
