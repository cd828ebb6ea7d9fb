#include "worker/programs/shoalrun/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/oom_score.h"
#include "worker/programs/shoalrun/output.h"

/* For the kernel to end what was killed, which it does at once unless that waits for a device. */
#define KILLED_WAIT_NS (5 * NS_PER_S)
/* A daemon that has been started again so often in so long would only end again. */
#define RESTARTS_MAX 5u
#define SAY_NS (10 * NS_PER_S) /* after which a wait is said */
#define RESTARTS_NS (10 * NS_PER_S)

int child_exit_code(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int supervisor_init(struct supervisor *supervisor, struct child *children, uint32_t count,
                    uint32_t timeout_s, uint32_t grace_s, struct error *error)
{
    *supervisor = (struct supervisor){.children = children, .count = count};
    /* Processes that a rank leaves behind become our children, so that we can tell when they are
     * gone. */
    if (prctl(PR_SET_CHILD_SUBREAPER, 1))
        return error_set_errno(error, errno, "cannot adopt what the ranks start");
    supervisor->grace_ns = grace_s * NS_PER_S;
    supervisor->timeout_ns = timeout_s ? clock_now_ns() + timeout_s * NS_PER_S : 0;
    /* A SIGCHLD that was ignored when we began would keep our children's ends from us. */
    signal(SIGCHLD, SIG_DFL);
    supervisor->old_umask = umask(077);
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGHUP);
    sigaddset(&mask, SIGTSTP);
    if (sigprocmask(SIG_BLOCK, &mask, &supervisor->old_mask))
        return error_set_errno(error, errno, "cannot block signals");
    /* Nobody may be reading our output any more; the ranks and the daemons are to be ended. */
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, &supervisor->old_pipe);
    supervisor->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (supervisor->signals < 0) {
        int result = error_set_errno(error, errno, "cannot open a signalfd");
        sigprocmask(SIG_SETMASK, &supervisor->old_mask, NULL);
        return result;
    }
    return 0;
}

/* In the child: what it would have inherited without us. */
static void child_give_back(const struct supervisor *supervisor)
{
    umask(supervisor->old_umask);
    sigaction(SIGPIPE, &supervisor->old_pipe, NULL);
    sigprocmask(SIG_SETMASK, &supervisor->old_mask, NULL);
}

/* In the child: whoever started us may have ignored or blocked any signal. That by which a daemon
 * is told to retire waits until it reads signals. */
static void child_forget_signals(void)
{
    sigset_t retire;
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigemptyset(&retire);
    sigaddset(&retire, SIGUSR1);
    sigprocmask(SIG_SETMASK, &retire, NULL);
}

/* In the child: everything up to exec. Reports through the pipe, which closes on success. */
static _Noreturn void child_execute(const struct supervisor *supervisor,
                                    const struct child_start *start, int report, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) /* it died before the line above */
        _exit(127);
    if (start->own_group)
        setpgid(0, 0);
    int score;
    if (start->oom_score > 0 && oom_score_read(&score, NULL) == 0 && score < start->oom_score)
        oom_score_write(start->oom_score, NULL);
    bool fails = (start->input >= 0 && dup2(start->input, STDIN_FILENO) < 0) ||
                 (start->output >= 0 && (dup2(start->output, STDOUT_FILENO) < 0 ||
                                         dup2(start->output, STDERR_FILENO) < 0));
    for (uint32_t i = 0; !fails && i < start->inherited_count; i++)
        fails = fcntl(start->inherited[i], F_SETFD, 0) < 0;
    int reason = errno;
    if (start->is_own)
        child_forget_signals();
    else
        child_give_back(supervisor);
    if (!fails) {
        execvpe(start->program, start->argv, start->environment);
        reason = errno;
    }
    ssize_t written = write(report, &reason, sizeof(reason));
    (void)written;
    _exit(127);
}

int supervisor_start(struct supervisor *supervisor, struct child *child,
                     const struct child_start *start, struct error *error)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC))
        return error_set_errno(error, errno, "cannot open a pipe");
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        child_execute(supervisor, start, report[1], parent);
    int result = 0;
    if (pid < 0)
        result = error_set_errno(error, errno, "cannot start %s", start->program);
    close(report[1]);
    int reason = 0;
    ssize_t got = 0;
    if (pid > 0)
        do
            got = read(report[0], &reason, sizeof(reason));
        while (got < 0 && errno == EINTR);
    close(report[0]);
    if (got > 0) {
        waitpid(pid, NULL, 0);
        result = error_set_errno(error, reason, "cannot start %s", start->program);
    }
    if (result == 0) {
        child->pid = pid;
        child->running = true;
        child->own_group = start->own_group;
    }
    return result;
}

static bool kind_runs(const struct supervisor *supervisor, enum child_kind kind)
{
    for (uint32_t i = 0; i < supervisor->count; i++)
        if (supervisor->children[i].running && supervisor->children[i].kind == kind)
            return true;
    return false;
}

/* Whether the child is gone and processes of its group are not. Only those that are our children by
 * now are seen; they also keep the group's number from being used again. */
static bool group_remains(const struct child *child)
{
    siginfo_t info;
    return child->own_group && !child->running &&
           waitid(P_PGID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

static void child_signal(const struct child *child, int number)
{
    if (child->own_group && (child->running || group_remains(child)) &&
        kill(-child->pid, number) == 0)
        return;
    if (child->running) /* also when it has left its group */
        kill(child->pid, number);
}

static void kind_signal(const struct supervisor *supervisor, enum child_kind kind, int number)
{
    for (uint32_t i = 0; i < supervisor->count; i++)
        if (supervisor->children[i].kind == kind)
            child_signal(&supervisor->children[i], number);
}

/* A signal that the terminal has sent is known to those in our own group. */
static void signal_pass_on(const struct supervisor *supervisor, int number, bool from_terminal)
{
    for (uint32_t i = 0; i < supervisor->count; i++) {
        const struct child *child = &supervisor->children[i];
        if (child->kind == CHILD_WORKER && (child->own_group || !from_terminal))
            child_signal(child, number);
    }
}

static void failure_report(const struct child *child, const char *when)
{
    char who[160];
    if (child->kind == CHILD_WORKER)
        snprintf(who, sizeof(who), "rank %u (%s, pid %d)", child->rank, child->name,
                 (int)child->pid);
    else
        snprintf(who, sizeof(who), "the daemon of %s (pid %d)", child->name, (int)child->pid);
    if (WIFSIGNALED(child->status))
        fprintf(stderr, "shoalrun: %s was killed by signal %d (%s)%s\n", who,
                WTERMSIG(child->status), strsignal(WTERMSIG(child->status)), when);
    else
        fprintf(stderr, "shoalrun: %s ended with exit code %d%s\n", who, WEXITSTATUS(child->status),
                when);
}

static void ending_begin(struct supervisor *supervisor)
{
    if (supervisor->ending)
        return;
    supervisor->ending = true;
    supervisor->step_ns = clock_now_ns() + supervisor->grace_ns;
}

static bool restarts_left(struct child *child)
{
    uint64_t now = clock_now_ns();
    if (now - child->restarts_ns > RESTARTS_NS) {
        child->restarts_ns = now;
        child->restarts = 0;
    }
    return child->restarts++ < RESTARTS_MAX;
}

/* Whether the ranks of a daemon that was killed have another one to go on with. */
static bool daemon_restart(struct supervisor *supervisor, struct child *child)
{
    struct error error = {0};
    if (!supervisor->restart || supervisor->ending || !WIFSIGNALED(child->status) ||
        !restarts_left(child))
        return false;
    failure_report(child, "; starting it again");
    if (supervisor->restart(supervisor->restart_context, (uint32_t)(child - supervisor->children),
                            &error) == 0)
        return true;
    fprintf(stderr, "shoalrun: %s\n", error.text);
    return false;
}

static void child_ended(struct supervisor *supervisor, struct child *child, bool stopping)
{
    child->running = false;
    int code = child_exit_code(child->status);
    if (child->kind == CHILD_DAEMON) {
        /* Told to end before it had come as far as to handle that, it just ends. */
        if (stopping && (code == 0 || code == 128 + SIGTERM))
            return;
        if (!stopping && daemon_restart(supervisor, child))
            return;
        failure_report(child, stopping ? "" : " before the job was over");
        child->failed = supervisor->daemon_failed = true;
        ending_begin(supervisor);
        return;
    }
    if (code == 0)
        return;
    /* The ends that shoalrun itself asked for are no news. */
    bool asked = supervisor->terminated || supervisor->signal_received;
    if (!asked || (code != 128 + SIGTERM && code != 128 + SIGKILL &&
                   code != 128 + supervisor->signal_received))
        failure_report(child, "");
    if (supervisor->exit_code == 0)
        supervisor->exit_code = code;
    ending_begin(supervisor);
}

static void children_reap(struct supervisor *supervisor, bool stopping)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        for (uint32_t i = 0; i < supervisor->count; i++) {
            struct child *child = &supervisor->children[i];
            if (!child->running || child->pid != pid)
                continue; /* or an orphan of a rank, which nobody else waits for */
            child->status = status;
            child_ended(supervisor, child, stopping);
        }
    }
}

static void signals_read(struct supervisor *supervisor)
{
    struct signalfd_siginfo info;
    while (read(supervisor->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD)
            continue;
        int number = (int)info.ssi_signo;
        signal_pass_on(supervisor, number, info.ssi_code == SI_KERNEL);
        if (number == SIGTSTP) { /* the ranks sleep as long as we do */
            raise(SIGSTOP);
            signal_pass_on(supervisor, SIGCONT, false);
            continue;
        }
        if (!supervisor->signal_received)
            supervisor->signal_received = number;
        ending_begin(supervisor);
    }
}

#define RANKS_NAMED 8u

/* The first few of the ranks that have not ended: the others may only wait for them. */
static void timeout_report(const struct supervisor *supervisor)
{
    char ranks[128] = "";
    uint32_t running = 0;
    size_t used = 0;
    for (uint32_t i = 0; i < supervisor->count; i++) {
        const struct child *child = &supervisor->children[i];
        if (child->kind != CHILD_WORKER || !child->running)
            continue;
        if (running++ < RANKS_NAMED)
            used += (size_t)snprintf(ranks + used, sizeof(ranks) - used, "%s%u",
                                     running > 1 ? ", " : "", child->rank);
    }
    fprintf(stderr, "shoalrun: the time allowed has passed; ending rank%s %s%s\n",
            running == 1 ? "" : "s", ranks, running > RANKS_NAMED ? ", ..." : "");
}

/* The next step towards the end, when it is due. */
static void end_step(struct supervisor *supervisor)
{
    uint64_t now = clock_now_ns();
    if (supervisor->timeout_ns && now >= supervisor->timeout_ns && !supervisor->terminated) {
        timeout_report(supervisor);
        if (supervisor->exit_code == 0)
            supervisor->exit_code = 124;
        supervisor->timeout_ns = 0;
        supervisor->ending = true;
        supervisor->step_ns = now;
    }
    if (!supervisor->ending || now < supervisor->step_ns)
        return;
    kind_signal(supervisor, CHILD_WORKER, supervisor->terminated ? SIGKILL : SIGTERM);
    supervisor->killed = supervisor->terminated;
    supervisor->terminated = true;
    supervisor->step_ns = now + (supervisor->killed ? KILLED_WAIT_NS : supervisor->grace_ns);
}

int supervisor_wait_ms(uint64_t now_ns, uint64_t due_ns)
{
    if (due_ns <= now_ns)
        return 0;
    uint64_t wait_ms = (due_ns - now_ns - 1) / NS_PER_MS + 1;
    return wait_ms < INT_MAX ? (int)wait_ms : INT_MAX;
}

static int step_wait_ms(const struct supervisor *supervisor)
{
    uint64_t due = supervisor->ending ? supervisor->step_ns : 0;
    bool timed = supervisor->timeout_ns && !supervisor->terminated;
    if (timed && (!due || supervisor->timeout_ns < due))
        due = supervisor->timeout_ns;
    if (!due)
        return -1;
    return supervisor_wait_ms(clock_now_ns(), due);
}

/* Waits for a signal or output, at most timeout_ms (-1: for ever). */
static void events_wait(struct supervisor *supervisor, int timeout_ms)
{
    struct pollfd *polled = calloc(supervisor->count + 1, sizeof(*polled));
    if (!polled) { /* without it, output waits; signals are what matters */
        struct pollfd only = {.fd = supervisor->signals, .events = POLLIN};
        poll(&only, 1, timeout_ms);
        return;
    }
    polled[supervisor->count] = (struct pollfd){.fd = supervisor->signals, .events = POLLIN};
    for (uint32_t i = 0; i < supervisor->count; i++)
        polled[i] = (struct pollfd){.fd = supervisor->children[i].output, .events = POLLIN};
    if (poll(polled, supervisor->count + 1, timeout_ms) > 0)
        for (uint32_t i = 0; i < supervisor->count; i++)
            if (polled[i].revents)
                output_read(&supervisor->children[i]);
    free(polled);
}

/* The ranks of a failed run have ended: whether to wait for what they have left behind. */
static bool leftovers_wait(struct supervisor *supervisor)
{
    if (!supervisor->ending || (supervisor->killed && clock_now_ns() >= supervisor->step_ns))
        return false;
    for (uint32_t i = 0; i < supervisor->count; i++) {
        const struct child *child = &supervisor->children[i];
        if (child->kind != CHILD_WORKER || !group_remains(child))
            continue;
        if (!supervisor->terminated) /* they need no time to hear of the failure */
            supervisor->step_ns = clock_now_ns();
        return true;
    }
    return false;
}

void supervisor_wait_workers(struct supervisor *supervisor)
{
    for (;;) {
        children_reap(supervisor, false);
        if (!kind_runs(supervisor, CHILD_WORKER) && !leftovers_wait(supervisor))
            break;
        end_step(supervisor);
        events_wait(supervisor, step_wait_ms(supervisor));
        signals_read(supervisor);
    }
    for (uint32_t i = 0; i < supervisor->count; i++)
        output_finish(&supervisor->children[i]);
    if (supervisor->exit_code == 0 && supervisor->signal_received)
        supervisor->exit_code = 128 + supervisor->signal_received;
    if (supervisor->exit_code == 0 && supervisor->daemon_failed)
        supervisor->exit_code = 1;
}

void supervisor_wait_daemons(struct supervisor *supervisor, int fd)
{
    struct pollfd polled[] = {{.fd = supervisor->signals, .events = POLLIN}, {.fd = fd}};
    struct signalfd_siginfo info;
    while (kind_runs(supervisor, CHILD_DAEMON) && !polled[1].revents) {
        poll(polled, 2, -1);
        while (read(supervisor->signals, &info, sizeof(info)) > 0)
            ;
        children_reap(supervisor, true);
    }
}

void supervisor_retire_daemons(struct supervisor *supervisor)
{
    uint64_t ends = supervisor->timeout_ns ? supervisor->timeout_ns : UINT64_MAX;
    uint64_t now = clock_now_ns(), say = now + SAY_NS;
    kind_signal(supervisor, CHILD_DAEMON, SIGUSR1);
    for (;;) {
        children_reap(supervisor, true);
        if (!kind_runs(supervisor, CHILD_DAEMON) || supervisor->signal_received || now >= ends)
            break;
        events_wait(supervisor, supervisor_wait_ms(now, say < ends ? say : ends));
        signals_read(supervisor);
        now = clock_now_ns();
        if (now >= say) {
            fprintf(stderr, "shoalrun: the ranks of this node have ended; its daemon serves the "
                            "other nodes until theirs have, too\n");
            say = UINT64_MAX;
        }
    }
    if (supervisor->signal_received)
        supervisor->exit_code = 128 + supervisor->signal_received;
    else if (kind_runs(supervisor, CHILD_DAEMON))
        supervisor->exit_code = 124;
}

void supervisor_stop_daemons(struct supervisor *supervisor)
{
    /* A daemon that is stopped would not hear of SIGTERM, so SIGCONT comes first. Sent after it,
     * SIGCONT would take back the stop by which a leak checker looks at a daemon that ends. */
    kind_signal(supervisor, CHILD_DAEMON, SIGCONT);
    kind_signal(supervisor, CHILD_DAEMON, SIGTERM);
    uint64_t due = clock_now_ns() + supervisor->grace_ns;
    bool killed = false;
    for (;;) {
        children_reap(supervisor, true);
        if (!kind_runs(supervisor, CHILD_DAEMON))
            break;
        uint64_t now = clock_now_ns();
        if (now >= due && !killed) {
            fprintf(stderr, "shoalrun: daemons do not end at SIGTERM; killing them\n");
            kind_signal(supervisor, CHILD_DAEMON, SIGKILL);
            killed = true;
        }
        events_wait(supervisor, killed ? -1 : supervisor_wait_ms(now, due));
        struct signalfd_siginfo info;
        while (read(supervisor->signals, &info, sizeof(info)) > 0)
            ;
    }
    if (supervisor->exit_code == 0 && supervisor->daemon_failed)
        supervisor->exit_code = 1;
}

void supervisor_clear(struct supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->count; i++) {
        struct child *child = &supervisor->children[i];
        if (child->running) {
            child_signal(child, SIGKILL);
            waitpid(child->pid, &child->status, 0);
            child->running = false;
        }
        if (child->output >= 0)
            close(child->output);
        child->output = -1;
    }
    close(supervisor->signals);
    umask(supervisor->old_umask);
    sigprocmask(SIG_SETMASK, &supervisor->old_mask, NULL);
}
