/* The control messages of doc/protocol: one JSON object a line, and this structure for it.
 *
 * Every type uses the fields that its row in the table of message.c names, the rest being zero.
 * Every key has one form wherever it occurs. Its range differs for rank and local_rank (-1 in join
 * and job_join) and for group (-1 in failed), its meaning for ranks (nodes in job_open) and
 * timeout_ms. Figures are kept where the members of a job_open are, those of a daemon where its
 * servers are. Decoding checks all of it; what the parties' state allows is theirs to check.
 *
 * Calls common/text and common/base.
 */
#ifndef COMMON_FORMAT_MESSAGE_H
#define COMMON_FORMAT_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

#define MESSAGE_PROTOCOL 3u
/* The longest line, with its newline: of a message with lists; of any other; and of what comes from
 * a worker, from shoalctl, or from a daemon that has not proved who it is. */
#define MESSAGE_LINE_BYTES ((size_t)1 << 20)
#define MESSAGE_SHORT_LINE_BYTES ((size_t)8192)
#define MESSAGE_FIRST_LINE_BYTES ((size_t)4096)
#define MESSAGE_LIST_RANK_BYTES 8u /* of a list, for each rank: "32767," and some to spare */
#define MESSAGE_NAME_BYTES 64
#define MESSAGE_WORDS_BYTES 512  /* of the texts that a worker says */
#define MESSAGE_RANKS_MAX 32768u /* world size */
#define MESSAGE_HASH_BYTES 32
#define MESSAGE_ADDRESS_BYTES 256
#define MESSAGE_TOKEN_BYTES 16
/* By one rank: groups that are not open yet. And if there is more than one, ranks of them all. */
#define MESSAGE_GROUPS_WAITED_FOR_MAX 16u
#define MESSAGE_RANKS_WAITED_FOR_MAX 4096u
#define MESSAGE_TIMEOUT_MAX_MS 2000000000u
#define MESSAGE_TRACE_MAX_MS 60000u

enum message_conversation {
    MESSAGE_TO_DAEMON,       /* worker or shoalctl -> its node's daemon */
    MESSAGE_TO_WORKER,       /* daemon -> worker or shoalctl */
    MESSAGE_BETWEEN_DAEMONS, /* either way */
};

enum message_type {
    MESSAGE_NONE,
    /* to the daemon */
    MESSAGE_WORKER_HELLO,
    MESSAGE_JOIN,
    MESSAGE_UNABLE,
    MESSAGE_ENDING,
    MESSAGE_WORKER_GROUP_OPEN,
    MESSAGE_WORKER_GROUP_CLOSE,
    MESSAGE_SHARED_OPEN,
    MESSAGE_SHARED_CLOSE,
    MESSAGE_MEETING_OPEN,
    MESSAGE_HELD,
    MESSAGE_LEAVE,
    MESSAGE_RELEASE,
    MESSAGE_REJOIN,
    MESSAGE_RETURN,
    MESSAGE_WORKER_PING,
    MESSAGE_STATUS,
    MESSAGE_DRAIN,
    MESSAGE_TRACE,
    MESSAGE_TRACE_READ,
    MESSAGE_WHY,
    /* to the worker (the answers to status, trace, trace_read and why are documents of their own:
     * doc/protocol/control.md) */
    MESSAGE_DAEMON_HELLO,
    MESSAGE_WAITING,
    MESSAGE_JOINED,
    MESSAGE_WORKER_GROUP_OPENED,
    MESSAGE_SHARED_OPENED,
    MESSAGE_LEFT,
    MESSAGE_RELEASED,
    MESSAGE_PONG,
    MESSAGE_ERROR,
    MESSAGE_FAILED,
    MESSAGE_DRAINING,
    /* between daemons */
    MESSAGE_HELLO,
    MESSAGE_AUTH,
    MESSAGE_FABRIC,
    MESSAGE_REFUSED,
    MESSAGE_CONTESTED,
    MESSAGE_PING,
    MESSAGE_JOB_JOIN,
    MESSAGE_JOB_REFUSED,
    MESSAGE_JOB_WAITING,
    MESSAGE_JOB_WITHDRAW,
    MESSAGE_JOB_UNABLE,
    MESSAGE_JOB_OPEN,
    MESSAGE_JOB_OPENED,
    MESSAGE_JOB_READY,
    MESSAGE_JOB_FAILED,
    MESSAGE_JOB_CLOSE,
    MESSAGE_GROUP_JOIN,
    MESSAGE_GROUP_REFUSED,
    MESSAGE_GROUP_OPEN,
    MESSAGE_GROUP_OPENED,
    MESSAGE_GROUP_READY,
    MESSAGE_GROUP_LEAVE,
    MESSAGE_GROUP_CLOSE,
    MESSAGE_GROUP_FAILED,
    MESSAGE_RANK_LEFT,
    MESSAGE_RANK_WAITING,
    MESSAGE_LATE_QUERY,
    MESSAGE_LATE_REPLY,
    MESSAGE_WHY_QUERY,
    MESSAGE_WHY_REPLY,
    MESSAGE_JOB_REJOIN,
    MESSAGE_JOB_RETURN,
    MESSAGE_JOB_RETURNED,
    MESSAGE_RANK_GONE,
    MESSAGE_NODE_UNABLE,
    MESSAGE_NODE_DRAINING,
    MESSAGE_NODE_RETIRING,
    MESSAGE_TYPES,
};

/* Whether a job goes on where a connection breaks while both daemons live. */
enum message_recovery {
    MESSAGE_RECOVERY_CONFIGURED = 0, /* as the daemons are configured */
    MESSAGE_RECOVERY_ON = 1,         /* it does; refused where that is not configured */
    MESSAGE_RECOVERY_OFF = 2,        /* it fails */
    MESSAGE_RECOVERY_MOST = MESSAGE_RECOVERY_OFF,
};

struct message_list {
    uint32_t *values;
    uint32_t count;
};

struct message_position {
    uint32_t group;
    uint64_t sequences;
};

struct message {
    enum message_type type;
    uint32_t protocol;
    char software[MESSAGE_NAME_BYTES];
    char node[MESSAGE_NAME_BYTES];
    uint32_t pid;
    uint8_t roster[MESSAGE_HASH_BYTES];
    uint8_t nonce[MESSAGE_HASH_BYTES];
    uint8_t mac[MESSAGE_HASH_BYTES];
    uint32_t wire;        /* version of the data plane */
    uint64_t incarnation; /* of a daemon: another one after each start */
    uint64_t session;     /* that can go on over this connection; 0: none */
    uint64_t heard;       /* lines of the other daemon in the session, see conversation.h */

    char provider[MESSAGE_NAME_BYTES];
    char version[MESSAGE_NAME_BYTES];
    uint32_t message_bytes;
    uint8_t address[MESSAGE_ADDRESS_BYTES];
    uint32_t address_bytes;
    uint8_t token[MESSAGE_TOKEN_BYTES];

    char job[MESSAGE_NAME_BYTES];
    uint64_t job_id;
    uint32_t generation;
    uint64_t lineage; /* the job_id of a job's first generation; 0 in its own job_open */
    uint32_t uid;
    uint32_t world_size; /* 0, in join and job_join only: what the next generation has */
    int32_t rank;        /* -1: unknown, in join and job_join only */
    int32_t local_rank;  /* likewise */
    uint32_t local_size, node_index, node_count;
    uint32_t member; /* the number that a daemon gave its worker */
    uint32_t former; /* of a worker that comes back: the number of its last connection that asked */
    uint32_t restart_ms; /* of joined: how long it may be without a daemon; 0: it may not */
    uint32_t timeout_ms;
    uint32_t recovery; /* enum message_recovery; where it is left out, 0 */
    uint32_t whole;    /* of rejoin: 1, only if the next generation has the ranks of this one */
    uint32_t stragglers_ms; /* of rejoin: for so long, ranks are waited for that do not ask */
    uint32_t least_ranks;   /* of rejoin: how many the next generation is to have; 0: any number */
    uint32_t wait_ms;       /* of rejoin: for so long, newcomers are waited for to make so many */
    uint32_t age_ms;        /* of a process; 0: not known */
    uint32_t mark;          /* of the run that a rank is of; 0: not known */
    uint32_t duration_ms;

    uint32_t request;
    int32_t group; /* -1: the job, in failed only */
    uint32_t nth;
    uint32_t segment; /* of shared memory: the daemon's number for it */
    uint64_t bytes;
    uint64_t sequence;
    uint32_t chunk_bytes, least_shard_bytes;
    uint64_t pinned_bytes;

    int32_t code; /* enum error_code */
    char text[ERROR_TEXT_BYTES];

    struct message_list ranks, members, servers, weights, elders;
    struct message_position *positions;
    uint32_t position_count;
};

/* Fill *message from one line (NUL-terminated, without newline). ERR_PROTOCOL names the key at
 * fault; ERR_MEMORY. On success *message is the caller's to message_clear. */
int message_decode(struct message *message, enum message_conversation conversation,
                   const char *line, size_t length, struct error *error);
/* The line with its newline, NUL-terminated, the caller's to free; NULL: out of memory. */
char *message_encode(const struct message *message, size_t *length);

/* Whether a line that begins so may be longer than MESSAGE_SHORT_LINE_BYTES: its first key is the
 * type, without white space, of a message with lists. */
bool message_begins_list(enum message_conversation conversation, const char *head, size_t bytes);

/* Free the lists; the structure itself is the caller's. */
void message_clear(struct message *message);
/* Deep copy. ERR_MEMORY. */
int message_copy(struct message *to, const struct message *from);
/* Copy `count` values into the list, which must be empty. ERR_MEMORY. */
int message_list_set(struct message_list *list, const uint32_t *values, uint32_t count);

/* "job_join"; "none" for MESSAGE_NONE. */
const char *message_type_name(enum message_type type);

#endif
