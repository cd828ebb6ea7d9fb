/* shoalrun: ranks, daemons, signals, exit codes, and that nothing is left behind. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/stop_file.h"
#include "tests/lib/suite.h"
#include "worker/programs/shoalrun/launcher.h"

/* Every run gets a folder of its own to make its files in. */
static char *temporary;

static void setup(void)
{
    temporary = suite_make_directory();
}

static int entries_left(void)
{
    int count = 0;
    DIR *directory = opendir(temporary);
    /* A thread sanitizer's runtime makes a file at its start, and a process may be ended there. */
    for (struct dirent *entry; (entry = readdir(directory));)
        count += entry->d_name[0] != '.' && strncmp(entry->d_name, "tsan.", 5) != 0;
    closedir(directory);
    return count;
}

static void teardown(void)
{
    suite_remove_directory(temporary);
}

#define RUN(...) run_start((const char *[]){CLUSTER_BIN "shoalrun", __VA_ARGS__, NULL})

static struct process *run_start(const char *const *argv)
{
    char variable[512];
    snprintf(variable, sizeof(variable), "TMPDIR=%s", temporary);
    const char *environment[] = {variable, "SHOAL_SOCKET=", NULL};
    struct process_start start = {.argv = argv, .environment = environment};
    return process_start(&start);
}

static void end_with(struct process *process, int code)
{
    int got = process_wait(process, CLUSTER_PATIENCE_MS);
    ck_assert_msg(got == code, "exit code %d, not %d\n%.500s\n%.1500s", got, code,
                  process_output(process), process_errors(process));
    ck_assert_int_eq(entries_left(), 0);
}

START_TEST(test_ranks_and_environment)
{
    struct process *process =
        RUN("--nodes", "2", "-n", "2", "--tag-output", "--", "sh", "-c",
            "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE ${SHOAL_SOCKET##*/}");
    end_with(process, 0);
    const char *text = process_output(process);
    ck_assert_ptr_nonnull(strstr(text, "[0] 0 4 0 2 node0.sock\n"));
    ck_assert_ptr_nonnull(strstr(text, "[1] 1 4 1 2 node0.sock\n"));
    ck_assert_ptr_nonnull(strstr(text, "[2] 2 4 0 2 node1.sock\n"));
    ck_assert_ptr_nonnull(strstr(text, "[3] 3 4 1 2 node1.sock\n"));
    process_free(process);
}
END_TEST

/* When memory runs out the kernel takes a rank, not the daemon, which has the memory of all ranks
 * mapped; and whoever may lower it has the daemon last of all. */
START_TEST(test_whom_the_kernel_takes)
{
    int rank, daemon, own;
    FILE *file = fopen("/proc/self/oom_score_adj", "re");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%d", &own), 1);
    fclose(file);
    struct process *process =
        RUN("-n", "1", "--", "sh", "-c",
            "cat /proc/self/oom_score_adj; pid=$(" CLUSTER_BIN
            "shoalctl status --json | grep -o '\"pid\":[ 0-9]*' | head -n 1 | tr -dc 0-9);"
            "cat /proc/$pid/oom_score_adj");
    end_with(process, 0);
    ck_assert_int_eq(sscanf(process_output(process), "%d %d", &rank, &daemon), 2);
    ck_assert_int_ge(rank, 500);
    ck_assert_int_ge(rank, own);
    ck_assert_int_le(daemon, own);
    process_free(process);
}
END_TEST

START_TEST(test_tagged_output)
{
    struct process *process =
        RUN("--nodes", "1", "-n", "1", "--tag-output", "--", "sh", "-c",
            "echo to errors >&2; head -c 10000 /dev/zero | tr '\\0' x; echo; printf unfinished");
    end_with(process, 0);
    const char *text = process_output(process);
    ck_assert_ptr_nonnull(strstr(text, "[0] to errors\n"));
    ck_assert_ptr_nonnull(strstr(text, "[0] unfinished\n"));
    size_t x = 0;
    for (const char *c = text; *c; c++)
        x += *c == 'x';
    ck_assert_uint_eq(x, 10000);
    process_free(process);
}
END_TEST

/* Writing fails then; the run goes on to its end and cleans up, and SIGPIPE is the ranks' own. */
START_TEST(test_output_that_nobody_reads)
{
    const char *script = "exec 3>&1; { \"$0\" --nodes 1 -n 1 --tag-output -- sh -c '"
                         "  i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i + 1)); done;"
                         "  sh -c \"kill -PIPE \\$\\$\"; [ $? = 141 ] && exit 42"
                         "' 2>&1; echo code $? >&3; } | head -n 1";
    struct process *process =
        run_start((const char *[]){"sh", "-c", script, CLUSTER_BIN "shoalrun", NULL});
    end_with(process, 0);
    ck_assert_msg(strstr(process_output(process), "code 42\n") != NULL, "%s",
                  process_output(process));
    process_free(process);
}
END_TEST

START_TEST(test_job)
{
    struct process *process = RUN("--nodes", "2", "-n", "2", "--", CLUSTER_HELPER, "once");
    end_with(process, 0);
    process_free(process);
    process = RUN("--nodes", "1", "-n", "3", "--job", "named", "--", CLUSTER_HELPER, "once");
    end_with(process, 0);
    process_free(process);
}
END_TEST

START_TEST(test_verbose_and_config)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/../shoalrun-extra-%d.json", temporary, (int)getpid());
    FILE *file = fopen(path, "w");
    fputs("{\"log\":{\"level\":\"debug\"}}", file);
    fclose(file);
    struct process *process =
        RUN("--nodes", "2", "-n", "1", "--verbose", "--config", path, "--", CLUSTER_HELPER, "once");
    end_with(process, 0);
    ck_assert_ptr_nonnull(strstr(process_errors(process), "shoald"));
    process_free(process);
    file = fopen(path, "w");
    fputs("{\"log\":{\"level\":\"loud\"}}", file);
    fclose(file);
    process = RUN("--nodes", "1", "-n", "1", "--grace", "1", "--config", path, "--", CLUSTER_HELPER,
                  "once");
    ck_assert_int_gt(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    /* The daemon's complaint is shown. */
    ck_assert_ptr_nonnull(
        strstr(process_errors(process), "the daemon of ")); /* and the host's name */
    ck_assert_ptr_nonnull(strstr(process_errors(process), "/log/level"));
    ck_assert_int_eq(entries_left(), 0);
    process_free(process);
    unlink(path);
}
END_TEST

START_TEST(test_exit_codes)
{
    struct process *process = RUN("--nodes", "1", "-n", "3", "--grace", "1", "--", "sh", "-c",
                                  "[ $RANK = 1 ] && exit 42; exec sleep 100");
    char host[256] = "", name[LAUNCH_JOB_BYTES], rank_1[128];
    gethostname(host, sizeof(host) - 1);
    launch_host_name(host, name);
    snprintf(rank_1, sizeof(rank_1), "rank 1 (%s, pid ", name);
    end_with(process, 42);
    ck_assert_ptr_nonnull(strstr(process_errors(process), rank_1));
    ck_assert_ptr_nonnull(strstr(process_errors(process), "ended with exit code 42"));
    ck_assert_ptr_null(strstr(process_errors(process), "rank 0 ("));
    process_free(process);
    process = RUN("--nodes", "2", "-n", "1", "--grace", "1", "--", "sh", "-c",
                  "[ $RANK = 1 ] && kill -9 $$; exec sleep 100");
    end_with(process, 128 + SIGKILL);
    ck_assert_ptr_nonnull(strstr(process_errors(process), "rank 1 (node1, pid "));
    ck_assert_ptr_nonnull(strstr(process_errors(process), "was killed by signal 9"));
    process_free(process);
    process = RUN("--nodes", "1", "-n", "1", "--", "/nonexistent/program");
    end_with(process, 1);
    ck_assert_ptr_nonnull(strstr(process_errors(process), "cannot start /nonexistent/program"));
    process_free(process);
}
END_TEST

START_TEST(test_stubborn_rank_is_killed)
{
    struct process *process =
        RUN("--nodes", "1", "-n", "2", "--grace", "0", "--", "sh", "-c",
            "trap '' TERM; [ $RANK = 1 ] && exit 3; while :; do sleep 1; done");
    end_with(process, 3);
    process_free(process);
}
END_TEST

START_TEST(test_timeout)
{
    struct process *process = RUN("--nodes", "1", "-n", "3", "--timeout", "1", "--", "sh", "-c",
                                  "[ $RANK = 1 ] || exec sleep 100");
    end_with(process, 124);
    ck_assert_ptr_nonnull(
        strstr(process_errors(process), "the time allowed has passed; ending ranks 0, 2\n"));
    process_free(process);
}
END_TEST

START_TEST(test_timeout_of_many)
{
    struct process *process =
        RUN("--nodes", "1", "-n", "9", "--timeout", "1", "--", "sleep", "100");
    end_with(process, 124);
    ck_assert_ptr_nonnull(
        strstr(process_errors(process), "ending ranks 0, 1, 2, 3, 4, 5, 6, 7, ...\n"));
    process_free(process);
}
END_TEST

static void signal_ends(int number)
{
    struct process *process =
        RUN("--nodes", "2", "-n", "1", "--tag-output", "--", "sh", "-c",
            "trap 'kill $!; echo rank $RANK told; exit 0' INT TERM; sleep 100 & echo up; wait");
    ck_assert(process_wait_text(process, "[0] up", CLUSTER_PATIENCE_MS));
    ck_assert(process_wait_text(process, "[1] up", CLUSTER_PATIENCE_MS));
    process_signal(process, number);
    end_with(process, 128 + number);
    ck_assert_ptr_nonnull(strstr(process_output(process), "rank 0 told"));
    ck_assert_ptr_nonnull(strstr(process_output(process), "rank 1 told"));
    process_free(process);
}

START_TEST(test_signals_are_passed_on)
{
    signal_ends(SIGTERM);
    signal_ends(SIGINT);
}
END_TEST

/* The process whose number a rank tells on a line "own NUMBER". */
static pid_t own_process(struct process *process)
{
    ck_assert_msg(process_wait_text(process, "own ", CLUSTER_PATIENCE_MS), "%s",
                  process_errors(process));
    int pid = 0;
    ck_assert_int_eq(sscanf(strstr(process_output(process), "own "), "own %d", &pid), 1);
    return pid;
}

static void leaves_none(const char *script, const char *ranks, int code)
{
    struct process *process =
        RUN("--nodes", "1", "-n", ranks, "--grace", "1", "--", "sh", "-c", script);
    pid_t pid = own_process(process);
    end_with(process, code);
    ck_assert_int_eq(kill(pid, 0), -1); /* waited for as well */
    process_free(process);
}

START_TEST(test_what_ranks_started_ends_with_them)
{
    /* while the rank still runs, after it has ended, and when it does not listen */
    leaves_none("[ $RANK = 1 ] && exit 42; sleep 300 & echo own $!; wait", "2", 42);
    leaves_none("sleep 300 & echo own $!; exit 42", "1", 42);
    leaves_none("[ $RANK = 1 ] && exit 42; trap '' TERM; sleep 300 & echo own $!; wait", "2", 42);
}
END_TEST

START_TEST(test_what_was_killed_is_waited_for)
{
    struct process *process =
        RUN("--nodes", "1", "-n", "2", "--grace", "1", "--", "sh", "-c",
            "if [ $RANK = 1 ]; then until [ -e $TMPDIR/.traced ]; do sleep 0.01; done; exit 42; fi;"
            "trap '' TERM; sleep 300 & echo own $!; wait");
    pid_t pid = own_process(process);
    /* Killed together with its rank, but gone later: when its tracer has looked. */
    ck_assert_int_eq(ptrace(PTRACE_SEIZE, pid, NULL, NULL), 0);
    char path[256];
    snprintf(path, sizeof(path), "%.200s/.traced", temporary);
    ck_assert_int_eq(close(creat(path, 0600)), 0);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTERM);
    siginfo_t info;
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    ck_assert_int_eq(info.si_status, SIGKILL);
    ck_assert_int_eq(process_wait(process, 300), -1);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    end_with(process, 42);
    ck_assert_int_eq(kill(pid, 0), -1);
    process_free(process);
}
END_TEST

static int64_t children_cpu_ms(void)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

/* The time allowed passes between SIGTERM and SIGKILL, 2 s before the latter. */
START_TEST(test_no_spinning_while_ranks_are_ended)
{
    int64_t before_ms = children_cpu_ms();
    struct process *process =
        RUN("--nodes", "1", "-n", "2", "--grace", "3", "--timeout", "4", "--", "sh", "-c",
            "[ $RANK = 1 ] && exit 42; trap '' TERM; sleep 300 & wait");
    end_with(process, 42);
    ck_assert_int_lt(children_cpu_ms() - before_ms, 1500);
    process_free(process);
}
END_TEST

static char process_state(pid_t pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 0;
    if (file)
        fclose(file);
    return state;
}

static bool is_stopped(void *context)
{
    return process_state(*(pid_t *)context) == 'T';
}

static bool is_not_stopped(void *context)
{
    return process_state(*(pid_t *)context) != 'T';
}

START_TEST(test_ranks_stop_and_go_on)
{
    struct process *process =
        RUN("--nodes", "1", "-n", "1", "--", "sh", "-c", "echo own $$; exec sleep 300");
    pid_t pid = own_process(process);
    process_signal(process, SIGTSTP);
    ck_assert(wait_until(is_stopped, &pid, CLUSTER_PATIENCE_MS));
    ck_assert(wait_until(is_stopped, &process->pid, CLUSTER_PATIENCE_MS));
    process_signal(process, SIGCONT);
    ck_assert(wait_until(is_not_stopped, &pid, CLUSTER_PATIENCE_MS));
    process_signal(process, SIGTERM);
    end_with(process, 128 + SIGTERM);
    process_free(process);
}
END_TEST

/* The launcher's first child is the daemon. Nobody waits for the grace to pass. */
START_TEST(test_stopped_daemon_ends)
{
    struct process *process =
        RUN("--nodes", "1", "-n", "1", "--", "sh", "-c",
            "read -r daemon others </proc/$PPID/task/$PPID/children; kill -STOP $daemon; "
            "until grep -q stopped /proc/$daemon/status; do sleep 0.01; done; exit 7");
    end_with(process, 7);
    ck_assert_ptr_null(strstr(process_errors(process), "do not end at SIGTERM"));
    process_free(process);
}
END_TEST

/* The daemons of a run, in the order in which they were started; at most `most` of them. A child
 * that is still on its way to exec is none yet. */
static int running_daemons(const struct process *run, pid_t *pids, int most)
{
    char path[128];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)run->pid, (int)run->pid);
    FILE *file = fopen(path, "re");
    int count = 0;
    for (int pid; count < most && file && fscanf(file, "%d", &pid) == 1;) {
        char name[32] = "", state = process_state((pid_t)pid);
        snprintf(path, sizeof(path), "/proc/%d/comm", pid);
        FILE *comm = fopen(path, "re");
        if (comm && fgets(name, sizeof(name), comm) && strcmp(name, "shoald\n") == 0 && state &&
            state != 'Z')
            pids[count++] = (pid_t)pid;
        if (comm)
            fclose(comm);
    }
    if (file)
        fclose(file);
    return count;
}

/* The daemon of the second node of a run, which is killed again and again. */
struct victim {
    const struct process *run;
    pid_t other; /* the daemon of the first node */
    pid_t killed;
    pid_t now; /* the one in its place; 0: none yet */
};

static bool victim_replaced(void *context)
{
    struct victim *victim = context;
    pid_t pids[4];
    int count = running_daemons(victim->run, pids, 4);
    victim->now = 0;
    for (int i = 0; i < count; i++)
        if (pids[i] != victim->other && pids[i] != victim->killed)
            victim->now = pids[i];
    return victim->now != 0;
}

static bool victim_replaced_or_over(void *context)
{
    const struct victim *victim = context;
    bool replaced = victim_replaced(context);
    char state = process_state(victim->run->pid);
    return replaced || !state || state == 'Z';
}

static struct victim victim_choose(const struct process *run, const char *test)
{
    pid_t pids[2];
    if (running_daemons(run, pids, 2) != 2)
        suite_skip(test, "no /proc/PID/task/PID/children");
    return (struct victim){.run = run, .other = pids[0], .now = pids[1]};
}

static void victim_kill(struct victim *victim)
{
    victim->killed = victim->now;
    kill(victim->killed, SIGKILL);
}

/* A run whose ranks loop, with daemons that have `recovery`. */
static struct process *recovering_run(const struct stop_file *stop, char path[560])
{
    snprintf(path, 560, "%s/recovery.json", stop->directory);
    FILE *file = fopen(path, "w");
    fputs("{\"recovery\":true,\"timeouts\":{\"restart_ms\":60000}}", file);
    fclose(file);
    struct process *run = RUN("--nodes", "2", "-n", "1", "--grace", "1", "--config", path, "--",
                              CLUSTER_HELPER, "loop", stop->path, "1003");
    ck_assert(process_wait_text(run, "running\nrunning", CLUSTER_PATIENCE_MS));
    return run;
}

START_TEST(test_killed_daemon_is_started_again)
{
    struct stop_file stop;
    char path[560];
    stop_file_create(&stop);
    struct process *run = recovering_run(&stop, path);
    struct victim victim = victim_choose(run, "test_killed_daemon_is_started_again");
    for (int i = 0; i < 2; i++) { /* the second one is the first's successor */
        victim_kill(&victim);
        ck_assert(wait_until(victim_replaced, &victim, CLUSTER_PATIENCE_MS));
    }
    stop_file_raise(&stop);
    end_with(run, 0);
    ck_assert_ptr_nonnull(strstr(process_errors(run), "(Killed); starting it again"));
    process_free(run);
    stop_file_free(&stop);
}
END_TEST

/* A sixth time in ten seconds there is something wrong with it. A machine that is busy may begin to
 * count anew. */
#define KILLS_MAX 60

START_TEST(test_daemon_that_ends_again_and_again)
{
    struct stop_file stop;
    char path[560];
    stop_file_create(&stop);
    struct process *run = recovering_run(&stop, path);
    struct victim victim = victim_choose(run, "test_daemon_that_ends_again_and_again");
    for (int i = 0; i < KILLS_MAX && victim.now; i++) {
        victim_kill(&victim);
        ck_assert(wait_until(victim_replaced_or_over, &victim, CLUSTER_PATIENCE_MS));
    }
    int code = process_wait(run, CLUSTER_PATIENCE_MS);
    ck_assert_msg(code > 0, "exit code %d: %.900s", code, process_errors(run));
    ck_assert_ptr_nonnull(strstr(process_errors(run), "(Killed) before the job was over"));
    ck_assert_int_eq(entries_left(), 0);
    process_free(run);
    stop_file_free(&stop);
}
END_TEST

struct processes {
    pid_t pids[8];
    int count;
};

static bool all_gone(void *context)
{
    struct processes *list = context;
    for (int i = 0; i < list->count; i++)
        if (kill(list->pids[i], 0) == 0) {
            char state = process_state(list->pids[i]);
            if (state && state != 'Z') /* an orphan's zombie is init's business */
                return false;
        }
    return true;
}

START_TEST(test_killed_launcher_leaves_no_process)
{
    struct process *process = RUN("--nodes", "2", "-n", "1", "--", "sleep", "300");
    struct processes list = {.count = 0};
    char path[128];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)process->pid, (int)process->pid);
    for (int64_t until = process_now_ms() + CLUSTER_PATIENCE_MS;
         list.count < 4 && process_now_ms() < until;) {
        FILE *file = fopen(path, "re");
        if (!file) {
            suite_skip("test_killed_launcher_leaves_no_process", "no %s", path);
            process_free(process);
            return;
        }
        list.count = 0;
        for (int pid; list.count < 8 && fscanf(file, "%d", &pid) == 1;)
            list.pids[list.count++] = pid;
        fclose(file);
    }
    ck_assert_int_eq(list.count, 4); /* two daemons, two ranks */
    process_signal(process, SIGKILL);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 128 + SIGKILL);
    ck_assert(wait_until(all_gone, &list, CLUSTER_PATIENCE_MS));
    process_free(process);
    ck_assert_int_eq(entries_left(), 1); /* its folder, until the next run */
    process = RUN("--nodes", "1", "-n", "1", "--", "true");
    end_with(process, 0);
    process_free(process);
}
END_TEST

/* The next run removes neither the folder of a run that goes on nor what only has such a name. */
START_TEST(test_other_folders_stay)
{
    static const char *const names[] = {"shoalrun-abcdef", "shoalrun-results"};
    char path[256], socket_path[256];
    struct process *other =
        RUN("--nodes", "1", "-n", "1", "--", "sh", "-c", "echo own $$ $SHOAL_SOCKET; sleep 300");
    own_process(other);
    ck_assert_int_eq(sscanf(strstr(process_output(other), "own "), "own %*d %255s", socket_path),
                     1);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%.200s/%s", temporary, names[i]);
        ck_assert_int_eq(mkdir(path, 0700), 0);
    }
    struct process *process = RUN("--nodes", "1", "-n", "1", "--", "true");
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    process_free(process);
    ck_assert_int_eq(entries_left(), 3);
    ck_assert_int_eq(access(socket_path, F_OK), 0);
    process_signal(other, SIGTERM);
    ck_assert_int_eq(process_wait(other, CLUSTER_PATIENCE_MS), 128 + SIGTERM);
    process_free(other);
    ck_assert_int_eq(entries_left(), 2);
}
END_TEST

START_TEST(test_running_daemon)
{
    struct cluster *cluster = cluster_start(1, NULL);
    const char *socket_path = cluster->nodes[0].socket_path;
    struct process *process = RUN("--socket", socket_path, "-n", "3", "--", CLUSTER_HELPER, "once");
    end_with(process, 0);
    process_free(process);
    char variable[256];
    snprintf(variable, sizeof(variable), "SHOAL_SOCKET=%s", socket_path);
    const char *argv[] = {
        CLUSTER_BIN "shoalrun", "-n", "2", "--", "sh", "-c", "echo $SHOAL_SOCKET; exec \"$0\" once",
        CLUSTER_HELPER,         NULL};
    const char *environment[] = {variable, NULL};
    struct process_start start = {.argv = argv, .environment = environment};
    process = process_start(&start);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    ck_assert_ptr_nonnull(strstr(process_output(process), socket_path));
    process_free(process);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    /* The daemon is gone now: an error names the path, and no other daemon is taken in its
     * place. */
    process = RUN("--socket", socket_path, "-n", "1", "--", "true");
    end_with(process, 1);
    ck_assert_ptr_nonnull(strstr(process_errors(process), socket_path));
    process_free(process);
    cluster_free(cluster);
}
END_TEST

/* A daemon that is stopped: its backlog is full, and connect waits. */
START_TEST(test_daemon_that_does_not_answer)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char *directory = suite_make_directory();
    snprintf(address.sun_path, sizeof(address.sun_path), "%.80s/stopped.sock", directory);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), fds[8];
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(listener, 0), 0);
    int count = 0, result = 0;
    while (result == 0) {
        ck_assert_int_lt(count, 8);
        fds[count] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        result = connect(fds[count++], (struct sockaddr *)&address, sizeof(address));
    }
    ck_assert_int_eq(errno, EAGAIN);
    struct process *process = RUN("--socket", address.sun_path, "-n", "1", "--", "true");
    end_with(process, 1);
    ck_assert_ptr_nonnull(strstr(process_errors(process), "does not answer"));
    process_free(process);
    while (count > 0)
        close(fds[--count]);
    close(listener);
    suite_remove_directory(directory);
}
END_TEST

START_TEST(test_usage)
{
    struct process *process = RUN("-n", "0", "true");
    end_with(process, 2);
    ck_assert_str_eq(process_errors(process), "shoalrun: -n: got \"0\", must be a number from 1 to "
                                              "4096\nTry 'shoalrun --help'.\n");
    process_free(process);
    process = RUN("--help");
    end_with(process, 0);
    ck_assert_ptr_nonnull(strstr(process_output(process), "usage: shoalrun"));
    process_free(process);
    process = RUN("--version");
    end_with(process, 0);
    process_free(process);
}
END_TEST

START_TEST(test_folder_is_private)
{
    struct process *process = RUN("--nodes", "1", "-n", "1", "--", "sh", "-c",
                                  "stat -c 'mode %a' \"${SHOAL_SOCKET%/*}\"");
    end_with(process, 0);
    ck_assert_ptr_nonnull(strstr(process_output(process), "mode 700"));
    process_free(process);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoalrun");
    TCase *tests = tcase_create("shoalrun");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_ranks_and_environment);
    tcase_add_test(tests, test_whom_the_kernel_takes);
    tcase_add_test(tests, test_tagged_output);
    tcase_add_test(tests, test_output_that_nobody_reads);
    tcase_add_test(tests, test_job);
    tcase_add_test(tests, test_verbose_and_config);
    tcase_add_test(tests, test_exit_codes);
    tcase_add_test(tests, test_stubborn_rank_is_killed);
    tcase_add_test(tests, test_timeout);
    tcase_add_test(tests, test_timeout_of_many);
    tcase_add_test(tests, test_signals_are_passed_on);
    tcase_add_test(tests, test_what_ranks_started_ends_with_them);
    tcase_add_test(tests, test_what_was_killed_is_waited_for);
    tcase_add_test(tests, test_no_spinning_while_ranks_are_ended);
    tcase_add_test(tests, test_ranks_stop_and_go_on);
    tcase_add_test(tests, test_stopped_daemon_ends);
    tcase_add_test(tests, test_killed_daemon_is_started_again);
    tcase_add_test(tests, test_daemon_that_ends_again_and_again);
    tcase_add_test(tests, test_killed_launcher_leaves_no_process);
    tcase_add_test(tests, test_other_folders_stay);
    tcase_add_test(tests, test_running_daemon);
    tcase_add_test(tests, test_daemon_that_does_not_answer);
    tcase_add_test(tests, test_usage);
    tcase_add_test(tests, test_folder_is_private);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
