/* Declarations that the files of server/coordinator share, and nobody else includes: the
 * structures, and what each layer offers to those above it. */
#ifndef SERVER_COORDINATOR_COORDINATOR_INTERNAL_H
#define SERVER_COORDINATOR_COORDINATOR_INTERNAL_H

#include <utlist.h>

#include "common/base/hash.h"
#include "common/base/quota.h"
#include "common/config/config.h"
#include "common/log/log.h"
#include "common/log/log_throttle.h"
#include "server/coordinator/coordinator_io.h"
#include "server/jobs/ended.h"
#include "server/jobs/gathering.h"
#include "server/jobs/job.h"
#include "server/jobs/membership.h"
#include "server/jobs/succession.h"

#define COORDINATOR_MS 1000000ull
/* The other side's own deadline comes first; its words say more. */
#define COORDINATOR_GRACE_NS (1000 * COORDINATOR_MS)
#define COORDINATOR_OPEN_LEAST_MS 2000u
/* How long a daemon that was started a moment ago takes to connect with all that live. */
#define COORDINATOR_UNSEEN_NS (3000 * COORDINATOR_MS)
/* A server of a job that goes on answers job_open within this and 2 * timeouts.peer_ms: by then a
 * link of its own that cannot be used has been given up, and tried once more. */
#define COORDINATOR_ANSWER_NS (5000 * COORDINATOR_MS)
/* How often a worker that has come back is told of, until somebody waits for it. */
#define COORDINATOR_TELL_NS (250 * COORDINATOR_MS)
/* After which a job that has all its ranks and cannot open says why: a daemon that starts at the
 * same time connects sooner. */
#define COORDINATOR_SAY_NS (500 * COORDINATOR_MS)
/* A rank is told what its job waits for when it has waited so long. */
#define COORDINATOR_WAITING_NS (10000 * COORDINATOR_MS)
/* Within which all daemons have opened a group whose ranks have all come. */
#define COORDINATOR_GROUP_OPEN_MS 60000u
#define COORDINATOR_LATE_ASKS_MAX 1024u

/* The quotas that the users of a daemon's jobs share. */
enum coordinator_quota {
    QUOTA_JOBS,        /* that are open here */
    QUOTA_WORKERS,     /* of this node */
    QUOTA_GATHERINGS,  /* whose home this is */
    QUOTA_SUCCESSIONS, /* jobs that have failed and may go on */
    QUOTA_LATE_ASKS,   /* of other daemons that wait for the engine */
    COORDINATOR_QUOTAS,
};

enum worker_state {
    WORKER_JOINING, /* waits for the job's home */
    WORKER_OPENING, /* has a rank; the job's daemons are getting ready */
    WORKER_JOINED,
    WORKER_LEAVING,   /* the engine lets go of its arena */
    WORKER_RELEASING, /* likewise, of a job that has failed: it wants to go on */
    WORKER_APART,     /* its arena is its own; it may ask for the next generation */
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
    uint32_t world_size;           /* 0: a newcomer that waits */
    bool newcomer;                 /* it has had no rank of a generation that was ready */
    int32_t wished_rank, wished_local_rank;
    uint32_t home;
    bool asked; /* home has our job_join */
    /* For a worker whose job gathers and whose home is not there: when to say so, and when to ask
     * the next daemon instead. UINT64_MAX: it has been said; never. */
    uint64_t say_ns, elsewhere_ns;
    uint64_t told_ns; /* when it is told that its home is not there; UINT64_MAX: it has been */
    bool gone;        /* closed its socket while leaving */
    uint64_t deadline_ns;
    uint64_t former; /* the lineage of the failed job that it goes on from; 0: none */
    uint32_t stragglers_ms, least_ranks, wait_ms; /* as it has asked */
    /* For a worker that had its rank from a daemon in whose place this one was started: what it was
     * there. The home's answer is awaited until noted_by_ns, and asked for again: the daemon that
     * was asked may be lost, or hear late of a generation that had this worker and has failed. */
    bool returned;
    uint32_t former_generation, former_member;
    uint64_t noted_by_ns, tell_again_ns;
    bool whole;        /* it goes on only if no rank is lost (former) */
    uint32_t recovery; /* enum message_recovery, as it has asked */
    uint32_t age_ms;   /* of its process when it asked */
    uint32_t mark;     /* of its run; 0: not known */
    bool released;     /* the engine has let go of its arena */
    struct job *job;   /* from WORKER_OPENING to WORKER_LEAVING */
    uint32_t rank;
    uint32_t local_rank; /* from WORKER_JOINED on */
    char *ending; /* why its process is about to end, by its own words; NULL: it has not said */
    struct worker_group_request *requests;
    UT_hash_handle hh; /* by id */
};

/* A worker of any node that waits for the next generation of a job that it has no rank of. */
struct newcomer {
    struct newcomer_key {
        uint32_t node, member;
    } key;
    char name[MESSAGE_NAME_BYTES];
    uint32_t uid;
    struct gathering_member member;
    UT_hash_handle hh; /* by key */
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
    uint32_t node, uid;
    struct late_ask *next, *prev;
};

/* A process that cannot join its job. */
struct unable_rank {
    char job[MESSAGE_NAME_BYTES];
    uint32_t uid, pid, node;
    uint32_t world_size; /* 0: a newcomer */
    int32_t rank;        /* -1: not known */
};

/* A note at the home of a job says why one of its ranks could not join, for ranks that come later.
 */
struct unable {
    struct unable_rank who; /* its pid is 0 where no process alone is the cause */
    uint32_t told;          /* ranks that know it */
    uint64_t noted_ns;
    int code;
    char text[ERROR_TEXT_BYTES];
    struct unable *next, *prev;
    bool knows[]; /* [world_size]: of those whose rank is known */
};

/* Why another daemon cannot start. */
struct node_unable {
    uint64_t until_ns; /* it says so at least as long; 0: it says nothing */
    char reason[ERROR_TEXT_BYTES];
};

/* Another daemon has said whether it stays. */
enum coordinator_end {
    COORDINATOR_STAYS,
    COORDINATOR_RETIRES, /* it has no more ranks, and serves the others' */
    COORDINATOR_DRAINS,
};

struct coordinator {
    const struct config *config;
    struct log *log;
    const struct membership *membership;
    int64_t falling; /* the node of which coordinator_peer_down tells now; -1: none */
    struct coordinator_io io;
    uint64_t now_ns;
    struct quota quotas[COORDINATOR_QUOTAS]; /* coordinator_quota */

    struct worker *workers;
    struct job *jobs;
    struct ended_jobs ended;
    struct gathering *gatherings;
    struct unable *unables;           /* the oldest first */
    struct node_unable *nodes_unable; /* [server_count] */
    struct newcomer *newcomers;       /* uthash of all nodes', as this one heard of them */
    struct succession *successions;   /* uthash by lineage, the oldest first */
    struct late_ask *late_asks;
    struct queued_message *queue; /* to this daemon itself */

    struct log_throttles news, warnings; /* lines about what a user's processes do, by user */
    uint64_t swept_ns;                   /* when it was last told how many were left out */
    uint64_t dropped_messages;
    bool of_run;         /* all nodes of the roster have ranks of one run */
    const char *failure; /* why this daemon cannot start; NULL: it has started */
    bool retiring, draining, stopped;
    enum coordinator_end *others_end; /* [server_count]: said since they have connected */
    uint64_t retire_ns;               /* when this began, or another daemon was lost since */
    uint64_t drain_deadline_ns;
    uint32_t *came_back; /* [server_count]: how often each was away and came back, as counted */
};

/* The files below are layers: each may call those above its heading here, server/jobs and common/,
 * and none below it. A file that has to say something to one below its heading sends it to this
 * daemon itself (coordinator_send); coordinator.c hands that out after the entry. */

/* --- coordinator_ground.c: may call nothing of these */
const char *coordinator_node_name(const struct coordinator *c, uint32_t node);
/* Return a quota, with its limit and its words. */
struct quota *coordinator_quota(struct coordinator *c, enum coordinator_quota which);
/* A line about what the user's processes do. */
#define coordinator_log(c, level, uid, ...)                                                        \
    log_throttled((c)->log, coordinator_throttle((c), (level), (uid)), (c)->now_ns, (level),       \
                  __VA_ARGS__)
struct log_throttle *coordinator_throttle(struct coordinator *c, enum log_level level,
                                          uint32_t uid);
/* In each tick: how many lines were left out, when no more come. */
void coordinator_sweep_lines(struct coordinator *c);
/* Write the error with which a daemon that drains refuses and ends. Returns ERR_REFUSED. */
int coordinator_drain_error(const struct coordinator *c, struct error *error);
/* Write the error for those who need a daemon that cannot start. Returns ERR_REFUSED. */
int coordinator_unable_error(const struct coordinator *c, uint32_t node, const char *reason,
                             struct error *error);
/* Self, or connected, or away: then it hears later what it is sent. */
bool coordinator_reaches(const struct coordinator *c, uint32_t node);
/* Return whether the node is reached, and has not said that it drains. */
bool coordinator_stays(const struct coordinator *c, uint32_t node);
/* Whether a job goes on after losses; with `recovery` as its ranks have asked. */
bool coordinator_recovers(const struct coordinator *c, uint32_t recovery);
bool coordinator_is_up(const struct coordinator *c, uint32_t node); /* self, or up */
/* "server b (127.0.0.1:7701) is not connected: connection refused", or that it is so without the
 * fabric */
void coordinator_unreachable_text(const struct coordinator *c, uint32_t node, char *text,
                                  size_t bytes);
/* To a peer that is reached, or to this daemon itself; otherwise dropped: the peer's loss is known
 * or will be. */
void coordinator_send(struct coordinator *c, uint32_t node, const struct message *message);
/* Return 0 when something new of the user's may be sent to the node, else ERR_MEMORY: it is away,
 * and much of his waits for it. */
int coordinator_may_say(const struct coordinator *c, uint32_t node, uint32_t uid,
                        struct error *error);
/* To every daemon of the job, this one too when `self`. */
void coordinator_send_job(struct coordinator *c, const struct job *job,
                          const struct message *message, bool self);
struct job *coordinator_job(const struct coordinator *c, uint64_t id);
/* Say where the first of some ranks is: " (on node b)", " (the first on node b)". */
#define COORDINATOR_WHERE_BYTES (CONFIG_NAME_BYTES + 32)
void coordinator_where_text(const struct coordinator *c, const struct job *job,
                            const uint32_t *ranks, uint32_t count,
                            char text[COORDINATOR_WHERE_BYTES]);
/* Have a rank say on stderr for whom it waits. */
void coordinator_tell_rank(struct coordinator *c, const struct job *job, uint32_t rank,
                           const char *text);
/* The job of a message, when it is ready here; otherwise NULL, and the message counts as dropped.
 */
struct job *coordinator_ready_job(struct coordinator *c, const struct message *message);
/* After the time asked for (0: none), but not more than the configuration allows. */
uint64_t coordinator_deadline(const struct coordinator *c, uint32_t asked_ms, uint32_t most_ms);
/* Return the first daemon that this one reaches, from the one that the job's name stands for on, by
 * number and around. It may be this one. */
uint32_t coordinator_first_home(const struct coordinator *c, const char *job);
/* Return the rank's applicant, as the message of its daemon tells. */
struct gathering_member coordinator_applicant(const struct coordinator *c, uint32_t node,
                                              const struct message *message);
/* Until then, at least 1. */
uint32_t coordinator_remaining_ms(const struct coordinator *c, uint64_t deadline_ns);
/* A message of this daemon to another of the job. */
struct message coordinator_job_message(enum message_type type, const struct job *job);
/* code and text into a message. */
void coordinator_message_error(struct message *message, int code, const char *text);
/* To the engine. */
void coordinator_command(struct coordinator *c, const struct engine_command *command);
struct worker *coordinator_worker(const struct coordinator *c, uint32_t id);
void worker_send(struct coordinator *c, struct worker *worker, const struct message *message);
void worker_send_failed(struct coordinator *c, struct worker *worker, int64_t group, int code,
                        const char *text);
void worker_send_error(struct coordinator *c, struct worker *worker, uint32_t request, int code,
                       const char *text);

/* --- coordinator_late.c: may call the ground */
int late_on_query(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error);
int late_on_reply(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error);
void late_engine_report(struct coordinator *c, const struct engine_event *event);
/* A rank says that another one holds up a collective at their place. */
int late_worker_held(struct coordinator *c, struct worker *worker, const struct message *message,
                     struct error *error);
void late_forget_job(struct coordinator *c, uint64_t job);
void late_forget_node(struct coordinator *c, uint32_t node);
void late_tick(struct coordinator *c, struct job *job);
uint64_t late_deadline(const struct coordinator *c, const struct job *job);
/* The ranks that have been late for as long as timeouts.collective_ms lets them. False: none. */
bool late_over_text(const struct coordinator *c, const struct job *job, char *text, size_t bytes);

/* --- coordinator_newcomers.c: may call the ground */
/* Note a newcomer; every daemon does. If its node has as many as a daemon knows of one node
 * (limits.workers), it is logged and forgotten. */
void newcomer_add(struct coordinator *c, const char *name, uint32_t uid,
                  const struct gathering_member *member);
int newcomer_on_join(struct coordinator *c, uint32_t node, const struct message *message);
bool newcomer_remove(struct coordinator *c, uint32_t node, uint32_t member); /* whether there was */
bool newcomer_waits(const struct coordinator *c, uint32_t node, uint32_t member);
void newcomers_forget_node(struct coordinator *c, uint32_t node);
/* Return how many the job has, on nodes that are up and do not drain. */
uint32_t newcomers_count(const struct coordinator *c, const char *name, uint32_t uid);
/* Behind those that it has, as many as it has room for. */
void newcomers_add(const struct coordinator *c, struct gathering *gathering);
/* Tell a node, which may be this one, of a newcomer here; and tell all that it is none any more. */
void newcomer_tell(struct coordinator *c, const struct worker *worker, uint32_t node);
void newcomer_withdraw(struct coordinator *c, const struct worker *worker);

/* --- coordinator_return.c, workers here that had a rank from a daemon before this one: may call
 * the ground */
/* To one that may remember the job, or to all. */
void return_tell(struct coordinator *c, const struct worker *worker, uint32_t node);
void return_tell_all(struct coordinator *c, struct worker *worker);
/* Ask from the beginning, since the daemon that was to decide may be lost. The worker waits for an
 * answer as long as its rank is waited for, and another peer_ms: a daemon that decides and is
 * silent has that long, before the next one decides. */
void return_ask(struct coordinator *c, struct worker *worker);
/* Tell all that the worker does not come back after all. */
void return_withdraw(struct coordinator *c, const struct worker *worker);
/* The home of the job waits for the others with it. */
int return_on_noted(struct coordinator *c, uint32_t node, const struct message *message,
                    struct error *error);

/* --- coordinator_unable.c, ranks that cannot join: may call the ground */
/* The daemon where the job gathers, as far as this one reaches it. -1: nowhere. */
int64_t unable_home(const struct coordinator *c, const char *job);
/* Tell that daemon. */
void unable_tell(struct coordinator *c, const struct unable_rank *who, int64_t home, int code,
                 const char *text);
/* Take the line that a process says in place of join. */
int unable_worker_message(struct coordinator *c, const struct coordinator_credentials *credentials,
                          const struct message *message, struct error *error);
/* Write the words for all ranks. */
void unable_text(const struct coordinator *c, uint32_t node, const struct message *message,
                 char *text, size_t bytes);
/* Keep them at the home, for the ranks that are to come, whose processes are there already. `rank`,
 * or -1, knows them, and so do the members of the gathering, unless it is NULL. */
void unable_note(struct coordinator *c, const struct unable_rank *who, int code, const char *text,
                 const struct gathering *gathering);
/* Whether the rank that wants to join is refused with the words. No: nothing is known, or it is
 * the first of another attempt, and what was known goes. */
bool unable_refuses(struct coordinator *c, uint32_t node, const struct message *join,
                    struct error *refusal);
/* Note that the daemon of another node cannot start, and forget it. */
void unable_note_node(struct coordinator *c, uint32_t node, const char *reason);
void unable_forget_node(struct coordinator *c, uint32_t node);
/* Return whether the daemon of this node cannot start, by what it has said just now; -1: of any
 * node. */
bool unable_node(const struct coordinator *c, int64_t node, struct error *why);
void unables_forget(struct coordinator *c);

/* --- coordinator_home.c, jobs that gather here: may call newcomers and unable */
int home_job_join(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error);
int home_job_withdraw(struct coordinator *c, uint32_t node, const struct message *message,
                      struct error *error);
/* Refuse all ranks that gather: one of the job's ranks cannot join. */
int home_job_unable(struct coordinator *c, uint32_t node, const struct message *message,
                    struct error *error);
/* All of the job's daemons have it: it is ready. */
int home_job_opened(struct coordinator *c, uint32_t node, const struct message *message,
                    struct error *error);
void home_refuse(struct coordinator *c, const char *name, uint32_t uid,
                 const struct gathering_member *member, int code, const char *text);
/* Open the job of a complete gathering. ERR_STATE: a daemon that it needs is not up. ERR_MEMORY. */
int home_open(struct coordinator *c, const struct gathering *gathering);
/* Whether a daemon could hold shards of it, now or when its connection is back. */
bool home_has_server(const struct coordinator *c, const struct gathering *gathering);
void home_try_open(struct coordinator *c, struct gathering *gathering);
void home_tick(struct coordinator *c, struct gathering *gathering);
/* Write what a gathering that has all its ranks still waits for. False: it waits for nothing. */
bool home_waits_text(const struct coordinator *c, const struct gathering *gathering, char *text,
                     size_t bytes);
/* A daemon is there again: what ought to gather at it does so. */
void home_peer_connected(struct coordinator *c);
void home_peer_down(struct coordinator *c, uint32_t node);
/* Refuse what gathers here and needs a daemon that cannot start. */
void home_refuse_unable(struct coordinator *c);
void home_drain(struct coordinator *c);
uint64_t home_deadline(const struct coordinator *c);

/* --- coordinator_wish.c, how many ranks a job that goes on wishes for: may call newcomers */
/* The processes that would come behind those that have asked, of whom there are some. */
uint32_t wish_newcomers(const struct coordinator *c, const struct succession *succession);
/* Whether those that are there, so many, wish to be more first, and may wait for it. To be looked
 * at again when somebody comes or goes, and at the deadline. */
bool wish_waits(struct coordinator *c, struct succession *succession, uint32_t ranks);
/* Wait no more: the ranks that were wished for have not come in time. */
void wish_end(struct coordinator *c, struct succession *succession);
/* UINT64_MAX: nothing is waited for. */
uint64_t wish_deadline(const struct succession *succession);

/* --- coordinator_succession.c, jobs that have failed and go on: may call homes and wishes */
struct succession *succession_find(const struct coordinator *c, uint64_t lineage);
void succession_forget(struct coordinator *c, struct succession *succession);
/* Take the join of a rank, or of a newcomer, for whom a job that goes on may wait. */
int succession_on_join(struct coordinator *c, uint32_t node, const struct message *message,
                       struct error *error);
int succession_on_rejoin(struct coordinator *c, uint32_t node, const struct message *message,
                         struct error *error);
int succession_on_return(struct coordinator *c, uint32_t node, const struct message *message,
                         struct error *error);
int succession_on_gone(struct coordinator *c, uint32_t node, const struct message *message,
                       struct error *error);
/* The job was ready, or a later generation, and has failed here. */
void succession_begin(struct coordinator *c, const struct job *job);
/* A generation of the job opens here. */
void succession_opens(struct coordinator *c, const struct job *job);
/* A worker of this node that had a rank of the job will not ask. */
void succession_worker_gone(struct coordinator *c, uint64_t lineage, uint32_t worker);
void succession_ask_home(struct coordinator *c, struct worker *worker);
void successions_peer_down(struct coordinator *c, uint32_t node);
/* This daemon drains: the others go on without its ranks, and ask it no more. */
void successions_drain(struct coordinator *c);
void successions_peer_up(struct coordinator *c);
void successions_tick(struct coordinator *c);
uint64_t successions_deadline(const struct coordinator *c);

/* --- coordinator_segment.c, memory that the ranks of a group on this node share: may call the
 * ground */
int segment_worker_open(struct coordinator *c, struct worker *worker, const struct message *message,
                        struct error *error);
int segment_worker_close(struct coordinator *c, struct worker *worker,
                         const struct message *message, struct error *error);
void segment_engine_opened(struct coordinator *c, const struct engine_event *event);
/* The worker is done with all that it shares, in one group or (NULL) in all. */
void segments_leave(struct coordinator *c, struct worker *worker, struct group *group);
/* The group ends, and the engine lets go of them by itself. */
void segments_forget(struct coordinator *c, struct job *job, struct group *group);

/* --- coordinator_worker.c, a worker's ends: may call segments */
/* Answer a join with an error, close, forget. */
void worker_refuse(struct coordinator *c, struct worker *worker, int code, const char *text);
void worker_end(struct coordinator *c, struct worker *worker); /* close and forget */
/* Tell the worker that it has left the job, then close and forget it. */
void worker_end_departed(struct coordinator *c, struct worker *worker);
void worker_forget(struct coordinator *c, struct worker *worker); /* free it; out of its job, too */
void worker_request_free(struct worker *worker, struct worker_group_request *request);
/* Tell the workers here of the ranks of a job that they have joined. */
void workers_send_joined(struct coordinator *c, const struct job *job);
void worker_set_rule(struct message *message, const struct coordinator *c, const struct job *job,
                     const struct group *group);

/* --- coordinator_group_home.c, groups at the home of their job: may call the ground */
int group_on_join(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error);
int group_on_opened(struct coordinator *c, uint32_t node, const struct message *message,
                    struct error *error);
int group_on_leave(struct coordinator *c, uint32_t node, const struct message *message,
                   struct error *error);
/* A rank has departed from the job, and so from its groups. */
void group_home_rank_departed(struct coordinator *c, struct job *job, uint32_t rank);
void group_home_tick(struct coordinator *c, struct job *job);
uint64_t group_home_deadline(const struct job *job);

/* --- coordinator_group.c, groups on each daemon of their job: may call workers and segments */
int group_worker_open(struct coordinator *c, struct worker *worker, const struct message *message,
                      struct error *error);
int group_worker_close(struct coordinator *c, struct worker *worker, const struct message *message,
                       struct error *error);
int group_on_refused(struct coordinator *c, uint32_t node, const struct message *message,
                     struct error *error);
int group_on_open(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error);
int group_on_ready(struct coordinator *c, uint32_t node, const struct message *message,
                   struct error *error);
int group_on_close(struct coordinator *c, uint32_t node, const struct message *message,
                   struct error *error);
int group_on_failed(struct coordinator *c, uint32_t node, const struct message *message,
                    struct error *error);
void group_engine_opened(struct coordinator *c, const struct engine_event *event);
void group_engine_failed(struct coordinator *c, const struct engine_event *event);
/* The job is ready here, its workers have joined: tell them when its group of all ranks has failed
 * meanwhile. */
void group_job_ready(struct coordinator *c, struct job *job);

/* --- coordinator_job.c, jobs that are open here: may call groups, workers, segments and late
 * ranks. Functions marked * may free the job. */
int job_on_open(struct coordinator *c, uint32_t node, const struct message *message,
                struct error *error);
int job_on_rejoin(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error);
int job_on_rank_gone(struct coordinator *c, uint32_t node, const struct message *message,
                     struct error *error);
int job_on_ready(struct coordinator *c, uint32_t node, const struct message *message,
                 struct error *error);
int job_on_opened(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error);
int job_on_failed(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error);
int job_on_close(struct coordinator *c, uint32_t node, const struct message *message,
                 struct error *error);
int job_on_rank_departed(struct coordinator *c, uint32_t node, const struct message *message,
                         struct error *error);
void job_engine_opened(struct coordinator *c, const struct engine_event *event);         /* * */
void job_fail(struct coordinator *c, struct job *job, int code, const char *format, ...) /* * */
    __attribute__((format(printf, 4, 5)));
/* This daemon is to end: with a refusal, or a next generation that has no rank of it yet goes on
 * without its node. */
void job_fail_draining(struct coordinator *c, struct job *job); /* * */
void job_try_acknowledge(struct coordinator *c, struct job *job);
/* The connection with the node was broken, and has gone on. */
void job_peer_came_back(struct job *job, uint32_t node, uint64_t away_ns);
void job_peer_down(struct coordinator *c, struct job *job, uint32_t node,
                   const char *reason);                /* * */
void job_tick(struct coordinator *c, struct job *job); /* * */
/* Have the engine let go of the arenas of all workers here of a failed job. */
void job_close_in_engine(struct coordinator *c, struct job *job);
/* The last worker here may have gone: end a failed job. */
void job_worker_removed(struct coordinator *c, struct job *job); /* * */

/* --- coordinator_member.c, the workers of this node as members of jobs: may call jobs. All but
 * member_gathers may free the worker. */
/* Whether it waits for the others of a job that begins. */
bool member_gathers(const struct worker *worker);
/* Tell its home of it, when that can be told. Returns false where the worker is refused, and is no
 * more: its home's daemon cannot start. */
bool member_ask_home(struct coordinator *c, struct worker *worker);
/* Refuse those who wait for a home whose daemon cannot start. */
void member_refuse_unable(struct coordinator *c);
void member_home_lost(struct coordinator *c, struct worker *worker);
/* Refuse it, and tell the others of its job, if that begins: it cannot do so without this one. */
void member_refuse(struct coordinator *c, struct worker *worker, int code, const char *text);
int member_join(struct coordinator *c, uint32_t id,
                const struct coordinator_credentials *credentials, const struct message *message,
                struct error *error);
int member_return(struct coordinator *c, uint32_t id,
                  const struct coordinator_credentials *credentials, const struct message *message,
                  struct error *error);
int member_on_rank_waiting(struct coordinator *c, uint32_t node, const struct message *message,
                           struct error *error);
/* Tell it what its job waits for. */
int member_on_waiting(struct coordinator *c, uint32_t node, const struct message *message,
                      struct error *error);
int member_on_refused(struct coordinator *c, uint32_t node, const struct message *message,
                      struct error *error);
int member_leave(struct coordinator *c, struct worker *worker, struct error *error);
int member_release(struct coordinator *c, struct worker *worker, struct error *error);
void member_released(struct coordinator *c, struct worker *worker);
int member_rejoin(struct coordinator *c, struct worker *worker, const struct message *message,
                  struct error *error);
void member_gone(struct coordinator *c, struct worker *worker, const char *how);
/* Why its process ends, if it does. */
int member_ending(struct worker *worker, const struct message *message, struct error *error);
void member_engine_failed(struct coordinator *c, const struct engine_event *event);
void member_engine_detached(struct coordinator *c, const struct engine_event *event);
void member_tick(struct coordinator *c, struct worker *worker);

/* --- coordinator_drain.c: may call homes, workers and jobs */
/* Another daemon retires, or drains. */
int drain_on_peer(struct coordinator *c, uint32_t node, const struct message *message,
                  struct error *error);
/* No new jobs; those that are not yet ready are refused. */
void drain_begin(struct coordinator *c);
/* This daemon has no ranks any more. It drains when no other has. */
void retire_begin(struct coordinator *c);
/* When daemons that are lost, or have not come, are not waited for any more. */
uint64_t retire_deadline(const struct coordinator *c);
/* The engine has nothing in progress. */
void drain_engine_idle(struct coordinator *c, const struct engine_event *event);
/* The end of all jobs and workers. */
void drain_finish(struct coordinator *c);

/* --- coordinator.c, the entries of coordinator.h: may call all of these */

#endif
