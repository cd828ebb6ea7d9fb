/* Real processes in tests: started with their output kept, waited for with a deadline, ended by
 * pid. A failure in here aborts the test: it is the test's own mistake or the machine's. */
#ifndef TESTS_LIB_PROCESS_H
#define TESTS_LIB_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct process {
    pid_t pid;
    char name[64]; /* the end of its argv[0] */
    int pidfd;     /* readable when it has ended */
    bool ended;
    int code; /* exit code, or 128 + signal */
    int output_fd, errors_fd;
    char *output, *errors; /* as last read */
};

struct process_start {
    const char *const *argv;        /* ends with NULL; argv[0] is looked for in PATH */
    const char *const *environment; /* "NAME=VALUE" on top of this process's own; may be NULL */
    const char *directory;          /* NULL: this process's */
    const char *errors_path;        /* a new file for its errors; NULL: in memory */
    const int *inherited;           /* descriptors kept under their numbers */
    uint32_t inherited_count;
};

struct process *process_start(const struct process_start *start);
/* Start a process as process_start does, with argv alone. */
struct process *process_run(const char *const *argv);
/* Start a process as process_run does, from words with blanks between them: at most 48, and 2
 * KiB. */
struct process *process_run_words(const char *words);
/* Kills it if it still runs, waits for it, frees. NULL is allowed. */
void process_free(struct process *process);

/* The exit code, 128 + the signal that killed it, or -1 when it still runs after the time. A crash
 * and the status of a sanitizer are said on stderr too: scripts/run-tests.sh forgives a test
 * neither. */
int process_wait(struct process *process, int timeout_ms);
void process_signal(const struct process *process, int number);

/* Return what the process has written so far; valid until the next call for the same stream. */
const char *process_output(struct process *process);
const char *process_errors(struct process *process);
/* Until the text is in its output or errors; false when it has not come in the time, or the
 * process has ended without it. */
bool process_wait_text(struct process *process, const char *text, int timeout_ms);

/* Asks `condition` until it is true or the time has passed. */
bool wait_until(bool (*condition)(void *context), void *context, int timeout_ms);
/* A condition for it: somebody listens at the Unix socket of this path. That its file is there says
 * less: it is so before anybody listens. */
bool socket_answers(void *path);

/* Milliseconds of the monotonic clock. */
int64_t process_now_ms(void);

/* Return the resident memory of a process in KiB, from its /proc; -1 when it is gone. */
long process_resident_KiB(pid_t pid);
/* Return how many bytes of files in memory (memfd_create) of this name a process has mapped; -1
 * when it is gone. process_descriptor_count returns how many descriptors it has open, likewise. */
int64_t process_mapped_bytes(pid_t pid, const char *name);
int process_descriptor_count(pid_t pid);

#endif
