/* Declarations that the files of server/control share, and nobody else includes. The files are
 * layers: each may call those above its heading here, the coordinator, the membership and common/,
 * and none below it. A file that has to say something to one below its heading calls a callback
 * that it was given (control_stream_handlers, control_worker.gone), or waits for the update of the
 * turn. */
#ifndef SERVER_CONTROL_CONTROL_INTERNAL_H
#define SERVER_CONTROL_CONTROL_INTERNAL_H

#include <event2/buffer.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <utlist.h>

#include "common/auth/tls.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/quota.h"
#include "common/log/log_throttle.h"
#include "common/text/line_reader.h"
#include "server/control/ground/control_options.h"
#include "server/coordinator/coordinator.h"
#include "server/jobs/account.h"
#include "server/jobs/admission.h"
#include "server/jobs/conversation.h"
#include "server/jobs/membership.h"
#include "server/status/status.h"

#define CONTROL_SOFTWARE "shoald " SHOAL_VERSION
#define CONTROL_HANDSHAKE_S 5
#define CONTROL_FAILURE_S 10 /* how long a daemon that cannot start says so */
#define CONTROL_TOLD_MS 300  /* and when all have been told: for what is on the way */
#define CONTROL_FLUSH_S 2
#define CONTROL_DESCRIPTORS 2 /* that a join brings */
/* Under way, or being closed, or of shared memory, of one user: some more than his workers may join
 * with at once, since closing takes a moment. */
#define CONTROL_USER_DESCRIPTORS(workers) ((uint64_t)(CONTROL_DESCRIPTORS + 1) * ((workers) + 16u))
#define CONTROL_DESCRIPTORS_SENT 253 /* that one message may bring: the kernel's limit */
#define CONTROL_ANY_USER UINT32_MAX
#define CONTROL_OUTPUT_MAX_BYTES                                                                   \
    ((size_t)16 << 20) /* a reader that is further behind is cut off                               \
                        */
#define CONTROL_USER_OUTPUT_MAX_BYTES                                                              \
    ((size_t)64 << 20)                               /* of a user's connections together, beyond:  \
                                                      */
#define CONTROL_FREE_OUTPUT_BYTES ((size_t)64 << 10) /* which each may have */
#define CONTROL_STATUS_MAX_BYTES                                                                   \
    ((size_t)64 << 20)           /* of a status; shoalctl reads no longer line                     \
                                  */
#define CONTROL_TURN_LINES 16u   /* of one connection before it is another's turn */
#define CONTROL_TURN_ACCEPTS 16u /* TCP connections before it is others' turn */
#define CONTROL_TURN_NS 1000000u /* likewise */
#define CONTROL_LIST_S 20        /* in which a line with lists must have ended */
#define CONTROL_PARENT_DRAIN_MS 1000u
#define CONTROL_ACCEPT_MS 200 /* until accepting is tried again that cannot be done now */

struct control;

/* --- control_ground.c: may call none of these */
/* At the end of every callback: something may be due, or over. The update is an event of its own:
 * it comes once, behind the callbacks of this turn of the loop. */
void control_update_later(struct control *control);
void control_notice(struct control *control, enum control_notice notice);
/* To the engine. */
void control_command(struct control *control, const struct engine_command *command);

/* --- control_listener.c: may call none of these */
/* *file: what the socket's path is now. */
int control_listen_unix(const struct control *control, int *fd, struct stat *file,
                        struct error *error);
/* While the socket listens: whoever comes next takes a path where nobody answers for its own. Does
 * nothing if the path is another file by now. */
void control_unlink_unix(const struct control *control, const struct stat *file);
int control_listen_tcp(const struct control *control, int *fd, struct error *error);
/* On an address that is a number, or a name that can be looked up at once. */
int control_listen_address(const char *address, uint16_t port, int *fd, struct error *error);
bool control_address_is_loopback(const struct sockaddr *address);
void control_address_text(const struct sockaddr *address, char *text, size_t bytes);

/* --- control_source.c: may call none of these */
void control_source_of(const struct sockaddr *address, struct admission_source *source);
/* The addresses that the configuration has. ERR_MEMORY. */
int control_source_begin(struct control *control);
void control_source_clear(struct control *control);
/* Now and then: those of names whose nodes are to connect and are not connected. */
void control_source_look_up(struct control *control);
/* Asks the name servers of this machine; NULL: it cannot. */
struct evdns_base *control_source_resolver(struct control *control);

/* --- control_segment.c: may call none of these */
/* Memory that is writable at *base and nowhere else, and a descriptor that gives it to read. Both
 * are the caller's. ERR_MEMORY, ERR_SYSTEM, ERR_UNSUPPORTED. */
int control_segment_make(uint64_t bytes, bool writable, uint8_t **base, int *descriptor,
                         struct error *error);

/* --- control_closer.c, closing what strangers have sent, which may have to wait: may call none of
 * these */
/* In a thread of its own; until that is done it counts as a connection of the user, and they as
 * his descriptors. */
void control_close_foreign(struct control *control, uint32_t uid, const int *descriptors,
                           size_t count);
/* A connection on the Unix socket, in which messages may lie unread. */
void control_close_connection(struct control *control, uint32_t uid, int fd);
/* How many such threads a user has, or all have (CONTROL_ANY_USER). */
uint32_t control_closing_count(const struct control *control, uint32_t uid);
void control_closer_sweep(struct control *control); /* now and then */
void control_closer_clear(struct control *control);

/* --- control_descriptors.c, the last of them: may call none of these */
void control_descriptors_init(struct control *control);
/* Whether a stranger's new descriptor is one of those, and to be closed at once. */
bool control_descriptor_is_kept(const struct control *control, int fd);
/* There was none for a connection: whether it waits on, or has waited long enough. */
bool control_descriptors_wait(struct control *control, uint64_t now_ns);
/* Take the connections on the Unix socket that wait, one after the other, for `refuse` to close. */
void control_descriptors_refuse(struct control *control, void (*refuse)(struct control *, int fd));

/* --- control_visitor.c: may call none of these */
/* Return who is at the other end of an accepted connection, as an owner of a quota: a user or an
 * address. */
uint64_t control_visitor(int fd, const struct sockaddr *from);

/* --- control_http.c, documents over HTTP: may call the listener, descriptors, visitors */
struct control_http;
struct control_http_document {
    const char *path, *content_type; /* constants */
    /* The document, the caller's to free. NULL: it cannot be made now. */
    char *(*make)(struct control *control, size_t *length);
    /* Instead of `make`: what it always is, a constant. */
    const char *text;
    size_t length;
    const char *headers; /* more of them, each with its end of line; NULL: none. Constant */
    bool own_names;      /* given only to who asks by an address or name of this daemon */
};
struct control_http_options {
    struct event_base *base;
    const struct control_http_document *documents; /* constant, as long as the server is there */
    size_t count;                                  /* CONTROL_HTTP_DOCUMENTS at most */
    bool (*is_own_name)(const struct control *control, const char *name);
    struct control *control;
};
#define CONTROL_HTTP_DOCUMENTS 8
int control_http_create(struct control_http **http, const struct control_http_options *options,
                        const char *address, uint16_t port, struct error *error);
void control_http_free(struct control_http *http);
/* After it could not: when there were no descriptors left, it stops until then. */
void control_http_accept_again(struct control_http *http);
bool control_http_is_idle(const struct control_http *http);

/* --- control_turn.c, the order of the loop and everybody's share of its turns: may call none of
 * these */
/* The urgency of events; a number of them whose middle, every new event's, is CONTROL_LOW. */
#define CONTROL_PRIORITIES 4
#define CONTROL_VITAL 0 /* heartbeats, the watchdog, signals: short, and of nobody's making */
#define CONTROL_HIGH 1  /* the engine, daemons that have authenticated */
#define CONTROL_LOW 2   /* whatever else */
struct control_stream;
/* Share of a turn that the streams of a user have together, or those of all strangers, or those of
 * all daemons that have authenticated. */
struct control_share {
    uint32_t uid;
    uint32_t streams; /* that it is for */
    uint64_t turn;    /* for which the following counts */
    uint64_t spent_ns, limit_ns;
    size_t spent_bytes, limit_bytes;
    uint32_t lists, limit_lists;         /* lines with lists that have begun to come */
    struct control_stream *list_waiters; /* which have such a line for which there is no room */
    UT_hash_handle hh;                   /* by uid */
};
/* Makes control->base, and the shares that are always there. ERR_MEMORY. */
int control_turn_init(struct control *control);
void control_turn_clear(struct control *control);
/* The stream's turn_event comes when all others have had their turn. */
void control_turn_wait(struct control_stream *stream);
void control_turn_forget(struct control_stream *stream); /* it may wait, or not */
/* For one more stream; NULL: out of memory. */
struct control_share *control_share_of_user(struct control *control, uint32_t uid);
void control_share_leave(struct control *control, struct control_share *share);
/* The streams of a user, those included that only wait for their last words to be read. */
uint32_t control_share_streams(const struct control *control, uint32_t uid);
bool control_share_is_spent(const struct control *control, const struct control_share *share);
void control_share_spend(struct control *control, struct control_share *share, uint64_t ns,
                         size_t bytes);
/* How long a stream may give lines at a time; one line it may give always. */
uint64_t control_turn_limit_ns(const struct control *control);

/* --- control_wire.c, TLS or nothing between lines and a socket: may call none of these */
struct control_wire;
/* By the credentials, which are not needed any more after it. NULL: out of memory. */
struct control_wire *control_wire_create(const struct credentials *credentials,
                                         enum auth_role role);
void control_wire_free(struct control_wire *wire);
/* NULL: in the clear. */
struct tls *control_wire_tls(const struct control_wire *wire);
/* Bytes that are not in the output, because TLS's handshake is not over. */
size_t control_wire_waiting(const struct control_wire *wire);
/* Put what is to go out first into the output. This function and the next two put bytes for the
 * socket there, also when they fail. */
int control_wire_start(struct control_wire *wire, struct evbuffer *output, struct error *error);
/* count > 0. ERR_REFUSED: the other side is in the other mode, or not who it should be;
 * ERR_PROTOCOL, ERR_DISCONNECTED, ERR_MEMORY. */
int control_wire_receive(struct control_wire *wire, const char *bytes, size_t count,
                         struct line_reader *lines, struct evbuffer *output, struct error *error);
int control_wire_send(struct control_wire *wire, const char *bytes, size_t length,
                      struct evbuffer *output, struct error *error);

/* --- control_account.c, what waits in a stream, charged to its user: may call the closer */
struct control_stream;
/* The output is so long: false when that is too much for the user, and nothing has changed. */
bool control_account_output(struct control_stream *stream, size_t bytes);
/* Charge the descriptors that it has now: false when that is too much for the user. */
bool control_account_descriptors(struct control_stream *stream);
/* Whether the user has more of them than he may and one message can bring: what one connection too
 * many has brought does not end his others. */
bool control_account_is_full(const struct control *control, uint32_t uid);
/* Whether one more may be sent, which is charged then. */
bool control_account_has_room(struct control_stream *stream);
void control_account_clear(struct control_stream *stream);

/* --- control_stream.c, lines over one socket: may call the ground, turns, accounts, the wire and
 * the closer */

struct control_stream_handlers {
    /* The line is valid during the call. The stream may be freed or finished in it. */
    void (*line)(void *context, char *line, size_t length);
    /* The stream is over, and is to be freed in the call. ERR_DISCONNECTED: the other side has
     * ended it; ERR_PROTOCOL, ERR_MEMORY or ERR_SYSTEM: we do. */
    void (*end)(void *context, int code, const char *reason);
};

/* Descriptors that wait to go out to one connection. */
#define CONTROL_DESCRIPTORS_OUT_MAX 256u

/* A descriptor that goes out with a byte of the output. */
struct control_descriptor {
    int fd;
    uint64_t at; /* the byte's number among all that are ever written */
    struct control_descriptor *next, *prev;
};

struct control_stream {
    struct control *control;
    int fd;
    struct event *read_event, *write_event;
    struct event *turn_event; /* more lines are to be given; finishing: it has been long enough */
    struct event *list_event; /* a line with lists has not ended in time */
    struct evbuffer *output;
    struct control_wire *wire;      /* NULL: lines go as they are */
    uint64_t written;               /* bytes of the output, in all */
    struct control_descriptor *out; /* in the order of their bytes */
    uint32_t out_count;
    uint32_t sent_count;                     /* of them sent, and not known to have been read */
    uint64_t charged_bytes, charged_numbers; /* of output and descriptors, to the user's account */
    struct line_reader lines;
    bool with_descriptors;
    uint32_t uid;                         /* of the other side, if it may send descriptors */
    int descriptors[CONTROL_DESCRIPTORS]; /* received and not yet taken */
    int descriptor_count;
    struct control_stream_handlers handlers;
    void *context;
    bool finishing; /* close when the output is written; no owner any more */
    bool dead;      /* freed while its callback runs */
    bool running;
    bool overflow;
    bool unread; /* lines may be in the reader: no bytes are received */
    struct control_share *share;
    bool turn_waits;      /* for the next turn: in control->turn_waiters */
    bool list_comes;      /* a line with lists has begun: in share->lists */
    bool list_waits;      /* for room for one: in share->list_waiters */
    size_t list_bytes;    /* that it may have; 0: there may be none */
    uint64_t received_ns; /* when bytes came last */
    bool held;            /* no lines are given until it has its answer */
    bool answered;
    size_t answer_bytes; /* what the output may be longer by */
    struct control_stream *next, *prev;
    struct control_stream *turn_next, *turn_prev, *list_next, *list_prev;
};

/* Takes the descriptor, also on failure. Until it is said otherwise lines are as short as those of
 * somebody unknown; the share is the user's, or without descriptors the strangers'. NULL: out of
 * memory. */
struct control_stream *control_stream_create(struct control *control, int fd, bool with_descriptors,
                                             uint32_t uid,
                                             const struct control_stream_handlers *handlers,
                                             void *context);
void control_stream_free(struct control_stream *stream);
/* Trust the other side, a daemon that has authenticated: it may send all its messages, and comes
 * before others. */
void control_stream_trust(struct control_stream *stream);
/* Allow it lines with lists, of so many bytes each. */
void control_stream_allow_lists(struct control_stream *stream, size_t bytes);
/* When something came last; `now_ns` if something has come that was not read yet. */
uint64_t control_stream_heard_ns(const struct control_stream *stream, uint64_t now_ns);
/* Write what is waiting, then close and free. The owner forgets it. */
void control_stream_finish(struct control_stream *stream);
/* In its line callback: give it no more lines until the answer, which may be longer than others
 * and which it may have once at a time, is written. */
void control_stream_hold(struct control_stream *stream);

/* --- control_stream_out.c, the sending half of a stream: may call accounts and the wire */
void control_stream_send(struct control_stream *stream, const char *bytes, size_t length);
void control_stream_send_message(struct control_stream *stream, const struct message *message);
/* With a copy of the descriptor on its first byte. */
void control_stream_send_descriptor(struct control_stream *stream, const struct message *message,
                                    int descriptor);
void control_stream_answer(struct control_stream *stream, const char *bytes, size_t length);
/* Before anything is sent: what lies between the lines and the socket. Taken over. */
void control_stream_protect(struct control_stream *stream, struct control_wire *wire);
/* For control_stream.c: what the socket takes of it now, up to a limit. Bytes, or negative. */
ssize_t control_stream_write(struct control_stream *stream, struct error *error);
void control_stream_drop_output(struct control_stream *stream);
/* Write the error of a socket call that failed. */
int control_stream_error(struct error *error, int cause);

/* --- control_worker.c, connections on the Unix socket: may call streams and the closer */
struct control_worker {
    uint32_t id;
    struct control *control;
    struct control_stream *stream;
    struct coordinator_credentials credentials;
    bool hello;
    bool joined;       /* or has tried to */
    bool wants_status; /* is in control->status_waiters */
    /* Called, when it is not NULL, as the connection ends: whoever serves it lets go. */
    void (*gone)(struct control *control, uint32_t worker);
    struct control_worker *next, *prev;
    struct event *timer;         /* hello must come */
    int process;                 /* a pidfd of the process that has joined; -1: none */
    struct event *process_event; /* its end */
    bool has_arena;              /* not yet handed to the engine */
    struct arena arena;
    int doorbells[2]; /* what it rings; the end of a socket pair that the engine rings */
    int bell;         /* the other end of that, which goes out when it has joined; -1: it has */
    UT_hash_handle hh;
};
/* Whether the user may have one connection more. ERR_MEMORY. */
int control_worker_check(struct control *control, uint32_t uid, struct error *error);
/* See to it that the connection of a worker that joins ends with the process that made it, whoever
 * else has its socket. Where the kernel has no means for that, the socket's own end has to do.
 * ERR_MEMORY: no descriptor or memory for it. */
int control_worker_watch(struct control_worker *worker, struct error *error);
void control_worker_free(struct control_worker *worker); /* closes at once */
/* The arena of a worker, from the join until neither this thread nor the engine has it. */
struct control_arena {
    uint32_t worker;
    uint32_t uid;
    uint64_t bytes;
    bool left; /* the engine alone has it */
    UT_hash_handle hh;
};
/* ERR_MEMORY: the user has too much. */
int control_arena_charge(struct control_worker *worker, uint64_t bytes, struct error *error);
/* Note that the worker goes and its arena stays; control_arena_release notes that the arena goes.
 * Both do nothing for a worker that has none. */
void control_arena_leave(struct control *control, uint32_t worker);
void control_arena_release(struct control *control, uint32_t worker);
/* Drop the arena and the doorbells that the worker has brought, and the engine has not been
 * given. */
void control_arena_drop(struct control_worker *worker);
struct control_worker *control_worker_find(const struct control *control, uint32_t id);
/* Tells it so; the connection stays. */
void control_worker_refuse(struct control_worker *worker, int code, const char *reason);
/* Close after what was sent. */
void control_worker_finish(struct control_worker *worker);

/* --- admin.c: may call streams, HTTP and the ground */
struct admin;
int admin_create(struct admin **admin, struct control *control, struct error *error);
void admin_free(struct admin *admin);
/* Once a second. */
void admin_sample(struct control *control);
void admin_accept_again(struct control *control);
/* Return whether a daemon that could end is to wait for an open page, which has not yet heard how
 * the last job ended: for six seconds at most. */
bool admin_page_waits(struct control *control, uint64_t now_ns);
/* The worker gets the status, from the loop: a round of it makes one at most, for all who wait. */
void admin_want_status(struct control_worker *worker);

/* --- admin_trace.c, the traces that clients of the Unix socket take, one for each user: may call
 * workers, streams, the ground */
struct admin_trace {
    struct control *control;
    uint32_t worker; /* the connection that asked for it */
    uint32_t uid, pid;
    uint32_t number;
    uint64_t job_id;
    bool displaced; /* another user, who may as well, asked for one of this job */
    char job[MESSAGE_NAME_BYTES];
    uint32_t world_size;
    struct trace *trace; /* to be read; NULL: the engine has it */
    uint32_t next;       /* record to be read */
    struct event *timer; /* its end, or that of waiting for the client */
    struct admin_trace *next_trace, *prev_trace;
};
/* A job that runs and has a part on this node. NULL: there is none, and the error says what there
 * is. */
const struct job *admin_find_job(const struct control *control, const char *name,
                                 struct error *error);
void admin_trace_start(struct control_worker *worker, const struct message *message);
void admin_trace_read(struct control_worker *worker);
/* ENGINE_TRACED; may take the trace out of it. */
void admin_trace_over(struct control *control, struct engine_event *event);
/* The daemon drains, for the first time: what is recorded is the client's to read, soon. */
void admin_trace_drain(struct control *control);
/* Whether any client has a trace to read, or will have. */
bool admin_trace_waits(const struct control *control);
void admin_trace_clear(struct control *control);

/* --- control_peer.c, connections to other daemons: may call streams, the ground */
#define CONTROL_NOBODY UINT32_MAX

enum control_peer_state {
    PEER_RESOLVING,
    PEER_CONNECTING,
    PEER_HELLO, /* waits for hello */
    PEER_AUTH,
    PEER_FABRIC,
    PEER_CONTESTED, /* another daemon of its name is connected: does that one still live? */
    PEER_OPEN,
};
struct control_peer {
    struct control *control;
    enum control_peer_state state;
    bool connects;
    bool knocks;   /* it only looks whether the node's machine refuses connections */
    uint32_t node; /* CONTROL_NOBODY: not yet said */
    int fd;        /* while connecting */
    struct event *connect_event;
    struct evdns_getaddrinfo_request *resolving;
    struct control_stream *stream;
    const struct control_wire *wire; /* the stream's; as long as that is */
    struct secrets secrets;          /* as they were when it began */
    uint32_t secret;                 /* which one both use */
    struct event *timer;             /* the handshake must be over */
    uint8_t own_nonce[AUTH_NONCE_BYTES], peer_nonce[AUTH_NONCE_BYTES];
    uint8_t own_token[TRANSPORT_TOKEN_BYTES];
    uint64_t incarnation;              /* the other side's */
    struct admission_place place;      /* until it has authenticated */
    struct engine_peer_connect fabric; /* how the engine reaches it */
    uint64_t offered;        /* the session that this side has said it can go on with; 0: none */
    uint64_t session, heard; /* as the other side's `fabric` says */
    uint64_t contested_ns;
    char address[CONFIG_ADDRESS_BYTES + 8]; /* with the port, for the log */
    struct control_peer *next, *prev;
};
/* In the list of all, with a time limit for its handshake; NULL: out of memory. */
struct control_peer *control_peer_create(struct control *control, uint32_t node, bool connects);
const char *control_peer_name(const struct control_peer *peer);
void control_peer_send(struct control *control, uint32_t node, const struct message *message);
/* When the node was heard last, if it is connected; what has come and was not read counts. */
uint64_t control_peer_heard_ns(const struct control *control, uint32_t node, uint64_t now_ns);
/* End the connection, or the attempt, and free it. A node that was up goes down, or (recovers, and
 * recovery is on) is away until the next connection; an attempt of ours is made again later. */
void control_peer_finish_as(struct control_peer *peer, const char *reason, bool recovers);
/* End it like that, where the session may go on. */
void control_peer_finish(struct control_peer *peer, const char *reason);
/* The node is lost: nothing of its session goes on. */
void control_peer_lose(struct control *control, uint32_t node, const char *reason);
/* Lose a node that was away for too long; a connection that has come meanwhile ends. */
void control_peer_gone(struct control *control, uint32_t node, const char *reason);
/* Say on the new connection what the node has not heard on those before it. */
void control_peer_say_again(struct control_peer *peer);
/* End the connection with the node, whatever its state, as control_peer_finish_as does. */
void control_peer_end_node(struct control *control, uint32_t node, const char *reason,
                           bool recovers);
/* End it, but let what was sent on it still go out. */
void control_peer_finish_node(struct control *control, uint32_t node, const char *reason,
                              bool recovers);
void control_peer_free(struct control_peer *peer); /* says nothing to anybody */

/* --- control_handshake.c, what daemons say to each other first: may call peers, streams */
/* With a connected socket, which is taken over, also on failure: false, out of memory. */
bool control_handshake_start(struct control_peer *peer, int fd);
void control_handshake_greet(struct control_peer *peer);
/* In each update: of two daemons with one name the first stays if it has been heard since the
 * second came, and makes room if it is gone. */
void control_handshake_settle(struct control *control);

/* --- control_connect.c, how these connections come to be: may call the handshake, peers, the
 * listener */
/* The connection has got one of the descriptors that are kept for workers. One that has not
 * authenticated gives up its own, and *fd may be another then. False: there is none, and it is to
 * be closed; from an address of the roster it may stay all the same. */
bool control_connect_squeeze(struct control *control, int *fd, const struct sockaddr *address);
void control_connect_accept(struct control *control, int fd, const struct sockaddr *address);
void control_connect_node(struct control *control, uint32_t node);
/* Connect to one that connects to this node and is away, and say nothing: where its machine refuses
 * that, its daemon has ended, and the node is lost. */
void control_connect_knock(struct control *control, uint32_t node);

/* --- control_adapter.c, between the coordinator and the rest: may call workers, peers, traces */
void control_engine_events(struct control *control);
struct coordinator_io control_coordinator_io(struct control *control);
/* Drain for limit_ms at most; again: for less. */
void control_drain(struct control *control, uint32_t limit_ms);

/* --- control_why.c, whom a job waits for: may call all of the above */
struct control_why;
/* The worker asks, and is answered when the job's daemons have told theirs. */
void control_why_ask(struct control_worker *worker, const struct message *message);
/* A node asks, or answers. ERR_PROTOCOL: it makes no sense. */
int control_why_told(struct control *control, uint32_t node, const struct message *message,
                     struct error *error);
/* Return what was last said of each job, as a document for the page, the caller's to free; NULL:
 * out of memory. Asks anew, once a second at most, for whoever comes next. */
char *control_why_document(struct control *control, size_t *length);
/* Give what was last found of jobs whose rank 0 is here, at most CONTROL_VERDICTS of them, and ask
 * for new verdicts. Returns how many. */
#define CONTROL_VERDICTS 8u
uint32_t control_why_verdicts(struct control *control,
                              struct status_verdict verdicts[CONTROL_VERDICTS]);
/* Ask anew, for what the page says of the last minutes. To be called each second. */
void control_why_watch(struct control *control);
void control_why_clear(struct control *control);

/* --- control_dialogue.c, what a connection on the Unix socket says: may call all of the above */
void control_dialogue_accept(struct control *control, int fd);
/* There is no descriptor for it but this one: say so, and close it. */
void control_dialogue_turn_away(struct control *control, int fd);

/* --- control_watch.c, the engine's thread: may call nothing of the above */
struct control_watch {
    uint64_t turns, looked_ns; /* when it was looked at last */
    uint64_t still_ns;         /* how long it has not gone on */
    bool stuck;                /* that was too long */
};
/* Looks at it. False: it is stuck, which is logged once; the daemon is not to seem alive. */
bool control_engine_goes_on(struct control *control);

/* --- control.c, the loop: may call all of the above */
struct control {
    struct control_options options;
    const struct config *config;
    struct log *log;
    struct event_base *base;
    struct evdns_base *dns; /* made when a name is looked up */
    struct event *unix_event, *tcp_event, *engine_event, *signal_event, *parent_event;
    struct event *tick_event, *alive_event, *stop_event, *accept_event, *update_event;
    struct event *heartbeat_event;
    uint64_t updates;        /* how many there have been; for tests */
    uint64_t accept_told_ns; /* when it was last said that connections cannot be accepted */
    int unix_fd, tcp_fd;
    int spare_fd;            /* given up to refuse connections when there is no other */
    uint64_t strangers_end;  /* descriptors from this number on are not for them */
    uint64_t short_since_ns; /* since when connections cannot be accepted; 0: they can */
    bool owns_socket_path;
    struct stat socket_file; /* what the path was when it was ours */

    struct membership membership;
    struct coordinator *coordinator;
    struct control_stream *streams;
    struct event *turn_event;
    uint64_t turn; /* of the loop: after all streams that have something have had their share */
    uint64_t turn_spent_ns;
    struct control_stream *turn_waiters;
    struct control_share *shares; /* of users, uthash by uid */
    struct control_share strangers, trusted;
    struct control_closing *closings;
    struct control_worker *workers;
    struct control_arena *arenas;
    struct account_book accounts;
    uint32_t next_worker;
    struct control_peer *peers;    /* all connections, authenticated or not */
    struct control_peer **peer_of; /* [roster]: the connection, or attempt, of each node */
    bool *told;                    /* [roster]: why this daemon cannot start */
    uint32_t told_count;
    struct conversation *conversations; /* [roster]: with each node, where recovery is on */
    uint32_t contested;                 /* how many are PEER_CONTESTED */
    uint64_t incarnation;               /* of this daemon: random, another one after each start */
    uint8_t roster_hash[AUTH_HASH_BYTES];
    struct admission admission;
    struct control_lookup *lookups;        /* [roster] */
    uint64_t look_up_ns;                   /* when names are looked up again */
    struct log_throttle stranger_lines[2]; /* of unknown addresses, of the roster's */
    struct log_throttles node_lines, user_lines;

    struct admin *admin;
    struct control_worker *status_waiters;
    struct admin_trace *traces;
    uint32_t trace_number;    /* of the newest */
    struct control_why *whys; /* questions that wait for other daemons */
    uint32_t why_number;      /* of the newest */
    struct control_why_pages *why_pages;
    /* The last verdicts of all jobs, the caller's to free: control_why_document. */
    char *(*why_document)(struct control *control, size_t *length);
    uint32_t (*why_verdicts)(struct control *control, struct status_verdict *verdicts);
    /* Take a message of a node that is neither for its connection nor for a job:
     * control_why_told. */
    int (*on_told)(struct control *control, uint32_t node, const struct message *message,
                   struct error *error);
    struct status_rates rates;
    uint64_t started_ns;
    bool draining, stopping;
    struct control_watch watch;
    int result;
};

#endif
