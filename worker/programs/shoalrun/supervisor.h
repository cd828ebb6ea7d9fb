/* The processes of a run: starting them, passing signals on, ending the others when one fails. Only
 * processes started here are ever signalled, with the groups that they lead, and only until they
 * have been waited for. Processes that a rank has started and left behind end with a run that
 * fails. */
#ifndef WORKER_PROGRAMS_SHOALRUN_SUPERVISOR_H
#define WORKER_PROGRAMS_SHOALRUN_SUPERVISOR_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/error.h"

enum child_kind { CHILD_DAEMON, CHILD_WORKER };

#define CHILD_LINE_BYTES 4096

struct child {
    enum child_kind kind;
    uint32_t rank;    /* of a worker */
    const char *name; /* of its node */
    pid_t pid;        /* 0: not started */
    bool running;
    bool failed;          /* a daemon has ended by itself */
    bool own_group;       /* the pid is also the number of its process group */
    uint32_t restarts;    /* since restarts_ns */
    uint64_t restarts_ns; /* when the count began */
    int status;           /* of waitpid, once it has ended */
    int output;           /* pipe with its output to be tagged, or -1 */
    uint32_t line_bytes;
    char line[CHILD_LINE_BYTES]; /* what has been read of a line */
};

struct supervisor {
    struct child *children; /* [count]: daemons and workers */
    uint32_t count;
    /* Starts a daemon that was killed again, as children[index]; NULL: its end is the run's. */
    int (*restart)(void *context, uint32_t index, struct error *error);
    void *restart_context;
    uint64_t timeout_ns; /* 0: none */
    uint64_t grace_ns;
    int signals; /* signalfd; the signals are blocked meanwhile */
    sigset_t old_mask;
    mode_t old_umask;          /* ours lets nobody else in; the workers get this one */
    struct sigaction old_pipe; /* what SIGPIPE does; ignored here until the process ends */

    bool ending;         /* a worker or daemon has failed, or a signal has come */
    bool terminated;     /* SIGTERM has been sent */
    bool killed;         /* SIGKILL has been sent */
    uint64_t step_ns;    /* when the next step towards the end is due */
    int exit_code;       /* of the run: the first failure's */
    int signal_received; /* SIGINT, SIGTERM, SIGHUP, or 0 */
    bool daemon_failed;
};

/* Blocks the signals, but SIGPIPE, which is ignored. children stay the caller's. */
int supervisor_init(struct supervisor *supervisor, struct child *children, uint32_t count,
                    uint32_t timeout_s, uint32_t grace_s, struct error *error);
/* Kills what remains and waits for it. */
void supervisor_clear(struct supervisor *supervisor);

/* Values with which a child is started. */
struct child_start {
    const char *program; /* looked for in PATH when it has no '/' */
    char *const *argv;
    char *const *environment;
    int input;            /* its stdin, or -1: inherited */
    int output;           /* its stdout and stderr, or -1: inherited */
    const int *inherited; /* descriptors that it keeps, under the same numbers */
    uint32_t inherited_count;
    int oom_score;  /* at least so soon the kernel takes it when memory runs out; 0: as it is */
    bool is_own;    /* a program of shoal's: no signal is ignored or blocked, whatever was here */
    bool own_group; /* signalled with all that it starts; not reached by the terminal's signals */
};
/* Starts a child. ERR_SYSTEM, also when the program cannot be executed. */
int supervisor_start(struct supervisor *supervisor, struct child *child,
                     const struct child_start *start, struct error *error);

/* Waits until all workers have ended. Failures are reported on stderr. */
void supervisor_wait_workers(struct supervisor *supervisor);
/* Waits until the pipe that fd is of has no writer any more, or all daemons have ended by
 * themselves; no signal but SIGKILL ends that. */
void supervisor_wait_daemons(struct supervisor *supervisor, int fd);
/* Tells the daemons that there are no ranks any more, and waits until no other node has any, so
 * that they end: as long as the run may last, and no signal comes. It says what it waits for. */
void supervisor_retire_daemons(struct supervisor *supervisor);
/* Sends SIGTERM to the daemons, and SIGKILL to those that do not end within the grace. */
void supervisor_stop_daemons(struct supervisor *supervisor);

/* For poll: milliseconds until due_ns, rounded up, at most INT_MAX. */
int supervisor_wait_ms(uint64_t now_ns, uint64_t due_ns);

/* 128 + signal, or the exit code. */
int child_exit_code(int status);

#endif
