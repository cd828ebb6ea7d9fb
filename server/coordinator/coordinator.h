/* The control of jobs on one daemon: jobs gathering at their home, ranks, groups, failure, leaving,
 * late ranks, the drain. Pure: the coordinator is told what happens and what time it is, and
 * answers through an I/O table. One coordinator is the home daemon of some jobs and a member of
 * others; its messages to itself go through a queue, in the same order as to others. */
#ifndef SERVER_COORDINATOR_COORDINATOR_H
#define SERVER_COORDINATOR_COORDINATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "common/config/config.h"
#include "common/log/log.h"
#include "server/coordinator/coordinator_io.h"
#include "server/jobs/ended.h"
#include "server/jobs/gathering.h"
#include "server/jobs/job.h"
#include "server/jobs/membership.h"
#include "server/jobs/succession.h"

struct coordinator;

/* All but io must outlive it. ERR_MEMORY. */
int coordinator_create(struct coordinator **coordinator, const struct config *config,
                       struct log *log, const struct membership *membership,
                       const struct coordinator_io *io);
void coordinator_destroy(struct coordinator *coordinator);

/* A line of a worker: join, group_open, group_close, shared_open, shared_close, leave, release,
 * rejoin. `worker` is
 * the caller's number for the connection, never used again. ERR_PROTOCOL, ERR_MEMORY: the caller
 * ends the connection and reports coordinator_worker_gone. */
int coordinator_worker_message(struct coordinator *coordinator, uint64_t now_ns, uint32_t worker,
                               const struct coordinator_credentials *credentials,
                               const struct message *message, struct error *error);
/* The connection is over, without end_worker. how: "ended", or "sent nonsense: ...". Workers that
 * have not joined are unknown here, and ignored. */
void coordinator_worker_gone(struct coordinator *coordinator, uint64_t now_ns, uint32_t worker,
                             const char *how);

/* The engine has let go of the worker's arena. */
void coordinator_worker_released(struct coordinator *coordinator, uint64_t now_ns, uint32_t worker);

/* The membership has been told before each of these. Where the fabric alone has lost a peer, that
 * comes after coordinator_peer_down, so that the peer hears of it too; then it is told again. */
void coordinator_peer_connected(struct coordinator *coordinator, uint64_t now_ns, uint32_t node);
void coordinator_peer_up(struct coordinator *coordinator, uint64_t now_ns, uint32_t node);
/* Its connection has broken, and may go on: jobs that have refused recovery fail, if they need the
 * peer. */
void coordinator_peer_away(struct coordinator *c, uint64_t now_ns, uint32_t node,
                           const char *reason);
void coordinator_peer_down(struct coordinator *coordinator, uint64_t now_ns, uint32_t node,
                           const char *reason);
/* ERR_PROTOCOL: the caller ends the connection and reports coordinator_peer_down. */
int coordinator_peer_message(struct coordinator *coordinator, uint64_t now_ns, uint32_t node,
                             const struct message *message, struct error *error);

/* Events of the engine (server/commands/engine_event.h). False: it is not the coordinator's but the
 * caller's: about a peer, of which membership is told first, or a trace. */
bool coordinator_engine_event(struct coordinator *coordinator, uint64_t now_ns,
                              const struct engine_event *event);

/* Take no new jobs, let running collectives finish for limit_ms, then tell everybody and stop. */
void coordinator_drain(struct coordinator *coordinator, uint64_t now_ns, uint32_t limit_ms);
/* Serve the other daemons until none of them has ranks any more: each has said so, by the same
 * call, or drains, or is lost and does not come again within timeouts.restart_ms. Then
 * coordinator_retired is true, and it is the caller's to drain. */
void coordinator_retire(struct coordinator *coordinator, uint64_t now_ns);
bool coordinator_retired(const struct coordinator *coordinator);
/* This daemon cannot start: refuse who comes with this reason, which outlives the coordinator. */
void coordinator_fail(struct coordinator *coordinator, const char *failure);
/* Another daemon has said that it cannot start: refuse those who need it, at once and for as long
 * as it says so. */
void coordinator_node_unable(struct coordinator *coordinator, uint64_t now_ns, uint32_t node,
                             const char *reason);
/* Each daemon of the roster has ranks of one run, so that no job does without one of them. */
void coordinator_set_run(struct coordinator *coordinator);
bool coordinator_draining(const struct coordinator *coordinator);
bool coordinator_stopped(const struct coordinator *coordinator);

/* Do what is due. Returns when to be called next, UINT64_MAX: not before another event. To be asked
 * after every other call, which may have changed it. */
uint64_t coordinator_tick(struct coordinator *coordinator, uint64_t now_ns);

/* For the status. Lists in uthash order, valid until the next call that takes now_ns. */
struct coordinator_worker_view {
    uint32_t worker, uid, pid;
    const char *job_name;
    uint32_t world_size;
    int32_t rank;    /* -1: not yet known */
    uint64_t former; /* not 0: the lineage of the failed job that it goes on from */
    bool opened;     /* the job has its ranks */
};
const struct job *coordinator_jobs(const struct coordinator *coordinator);
const struct gathering *coordinator_gatherings(const struct coordinator *coordinator);
/* Jobs that have failed, and may go on; those that have gone on, too. */
const struct succession *coordinator_successions(const struct coordinator *coordinator);
/* Jobs that have ended here lately. */
const struct ended_jobs *coordinator_ended(const struct coordinator *coordinator);
/* Write what a gathering that has all its ranks waits for. False: it waits for nothing. */
bool coordinator_gathering_waits(const struct coordinator *coordinator,
                                 const struct gathering *gathering, char *text, size_t bytes);
uint32_t coordinator_worker_count(const struct coordinator *coordinator);
/* views: [coordinator_worker_count]. */
void coordinator_worker_views(const struct coordinator *coordinator,
                              struct coordinator_worker_view *views);
bool coordinator_job_worker(const struct job *job, uint32_t rank, uint32_t *pid);
uint64_t coordinator_dropped_messages(const struct coordinator *coordinator);

#endif
