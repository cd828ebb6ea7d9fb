/* A job as a daemon knows it: its roster, its groups, its workers on this node, and how far it has
 * come. Pure. */
#ifndef SERVER_JOBS_JOB_H
#define SERVER_JOBS_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/base/hash.h"
#include "common/format/message.h"
#include "server/jobs/group.h"
#include "server/jobs/recoveries.h"

enum job_state {
    JOB_OPENING, /* its daemons are getting ready */
    JOB_READY,   /* its workers have been told */
    JOB_FAILED,  /* kept until its workers here are gone */
};

/* Roles of a node in a job. */
#define JOB_NODE_RANKS 1u
#define JOB_NODE_SERVER 2u
#define JOB_NODE_HOME 4u

struct worker; /* server/coordinator/coordinator_internal.h */

/* A collective of which some ranks are late. One for each group. */
struct job_late {
    uint32_t group;
    uint64_t sequence;
    uint64_t number; /* that the ranks count: with what they did at their place */
    bool held;       /* all have come to it, and its rank does not go on: a rank here says so */
    uint64_t since_ns;
    uint64_t asked_ns; /* when its nodes were asked the last time */
    uint64_t again_ns; /* when to ask again whether they still are */
    uint32_t waiting;  /* answers that are to come */
    uint32_t *ranks;
    uint32_t rank_count;
    struct job_late *next, *prev;
};

struct job {
    uint64_t id;
    char name[MESSAGE_NAME_BYTES];
    uint32_t generation;
    uint32_t recovery; /* enum message_recovery */
    uint32_t mark;     /* of the run whose job it is; 0: not known */
    uint64_t lineage;  /* the id of its first generation */
    uint32_t uid;
    uint32_t world_size;
    uint32_t *rank_nodes; /* [world_size] */
    uint32_t *members;    /* [world_size]: what each rank's daemon calls its worker */
    uint32_t server_count;
    uint32_t *servers; /* [server_count] node numbers, ascending */
    uint32_t *weights; /* [server_count] */
    uint32_t roster;   /* daemons there are */
    uint32_t self, home;
    uint8_t *roles; /* [roster]: JOB_NODE_ bits */
    bool *elders;   /* [roster]: of whom the next generation's home is chosen */

    enum job_state state;
    int code; /* why it failed; while opening, why its group of all ranks did */
    char text[ERROR_TEXT_BYTES];
    uint64_t began_ns, failed_ns;
    uint64_t deadline_ns; /* while opening */
    uint64_t answer_ns;   /* likewise, of a job that goes on, home only: then it does so without a
                           * server that has not answered; UINT64_MAX: never */
    bool engine_opened;   /* this node's engine has it, or need not */
    bool acknowledged;    /* home has been told */
    bool was_ready;       /* here; then all its daemons had acknowledged it */
    bool engine_closed;   /* failed, and the engine has let go of it, or will */

    struct worker **locals; /* [world_size]: workers of this node; NULL: elsewhere or gone */
    uint32_t local_count;
    bool *departed; /* [world_size]: has left the job */
    uint32_t departed_count;

    bool *opened; /* [roster], home only: has acknowledged */
    uint32_t next_group;
    uint32_t next_segment;  /* of all groups, on this node */
    uint32_t segment_count; /* open */
    uint32_t place_count;   /* of these, where ranks meet, and their memory */
    uint64_t place_bytes;
    struct group_gathering *gatherings; /* home only */

    struct group *groups; /* uthash by id */
    struct job_late *lates;
    uint64_t late_told_ns;        /* when a rank was told the last time of late ones; 0: never */
    struct recoveries recoveries; /* of all its generations, as this daemon knows */
    UT_hash_handle hh;            /* by id */
};

/* From job_open, sent by `home`; checks everything in it. ERR_PROTOCOL, ERR_MEMORY. Group 0 is
 * there afterwards. */
int job_create(struct job **job, const struct message *message, uint32_t home, uint32_t self,
               uint32_t roster, struct error *error);
void job_free(struct job *job);

bool job_needs_engine(const struct job *job);   /* whether this node has ranks or shards of it */
uint32_t job_local_size(const struct job *job); /* ranks on this node */
uint32_t job_node_count(const struct job *job); /* nodes with ranks */
uint32_t job_node_index(const struct job *job); /* the position of this one among them */
/* Whether ranks of the job on the node have not left. */
bool job_node_has_ranks(const struct job *job, uint32_t node);
struct group *job_group(const struct job *job, uint32_t id);
/* Whether all ranks of the group are on one node. */
bool job_group_is_local(const struct job *job, const struct group *group);

#define JOB_RANKS_TEXT_BYTES 160
/* "rank 3", "ranks 2, 3", with "and N more" behind the first ones. count > 0. */
void job_ranks_text(const uint32_t *ranks, uint32_t count, char text[JOB_RANKS_TEXT_BYTES]);
/* Write the text for all ranks on a node; "" when there are none. */
void job_node_ranks_text(const struct job *job, uint32_t node, char text[JOB_RANKS_TEXT_BYTES]);

#endif
