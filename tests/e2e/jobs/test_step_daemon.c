/* A step of srun on nodes without a daemon, as real processes: the variables are Slurm's, the two
 * nodes are of this machine, and munge is a stand-in that knows its user. */
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#define RANKS 4

/* Of the real one's all that is wanted here: who has sealed, and for whom alone. FAKE_UID: somebody
 * else. REFUSE_ONCE: the first to be opened is not. What munge's programs are started with is kept.
 */
static const char munge[] =
    "#!/bin/sh\n"
    "[ \"$*\" = \"--restrict-uid=$(id -u)\" ] || { echo 'for whom?' >&2; exit 1; }\n"
    "printf 'MUNGE:%s/%s:\\n' \"${FAKE_UID:-$(id -u)}\" \"$(base64 -w 0 | tr / _)\"\n";
static const char unmunge[] = "#!/bin/sh\n"
                              "ulimit -Sn >\"$0.limit\"\n"
                              "[ -n \"$REFUSE_ONCE\" ] && mkdir \"$0.once\" 2>/dev/null && exit 1\n"
                              "IFS=:/ read -r word user text rest\n"
                              "printf 'UID:  %s\\n\\n' \"$user\"\n"
                              "printf %s \"$text\" | tr _ / | base64 -d\n";

static char *directory;
static char path[PATH_MAX], port[64], job[64];
static uint16_t port_number;

static void write_program(const char *name, const char *text)
{
    char file[PATH_MAX];
    snprintf(file, sizeof(file), "%s/%s", directory, name);
    FILE *out = fopen(file, "w");
    ck_assert_ptr_nonnull(out);
    fputs(text, out);
    fclose(out);
    ck_assert_int_eq(chmod(file, 0755), 0);
}

static void setup(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t bytes = sizeof(address);
    directory = suite_make_directory();
    write_program("munge", munge);
    write_program("unmunge", unmunge);
    snprintf(path, sizeof(path), "PATH=%s:%s", directory, getenv("PATH"));
    /* Free now. Another process may get it before the step does, which the kernel's choice by
     * chance makes rare, not impossible. */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    close(fd);
    port_number = ntohs(address.sin_port);
    snprintf(port, sizeof(port), "SHOAL_STEP_PORT=%u", port_number);
    snprintf(job, sizeof(job), "SLURM_JOB_ID=%d", (int)getpid());
}

static void teardown(void)
{
    suite_remove_directory(directory);
}

/* A task of srun's, two on each of two nodes. more: a variable on top. */
static struct process *task(int rank, const char *more, const char *const *argv)
{
    char variables[3][64];
    snprintf(variables[0], 64, "SLURM_PROCID=%d", rank);
    snprintf(variables[1], 64, "SLURM_LOCALID=%d", rank % 2);
    snprintf(variables[2], 64, "SLURM_NODEID=%d", rank / 2);
    const char *environment[] = {variables[0],
                                 variables[1],
                                 variables[2],
                                 path,
                                 port,
                                 job,
                                 "SLURM_STEP_ID=0",
                                 "SLURM_STEP_NUM_NODES=2",
                                 "SLURM_STEP_NUM_TASKS=4",
                                 "SLURM_STEP_NODELIST=127.0.0.1,other",
                                 more ? more : "SHOAL_TIMEOUT_MS=60000",
                                 NULL};
    return process_start(&(struct process_start){.argv = argv, .environment = environment});
}

static const char *const first[] = {CLUSTER_BIN "shoal-first", NULL};

/* What the step's daemons have in /tmp. */
static bool is_gone(void *unused)
{
    char prefix[64];
    (void)unused;
    snprintf(prefix, sizeof(prefix), "shoal-step-%u-%d.", (unsigned)geteuid(), (int)getpid());
    bool found = false;
    DIR *entries = opendir("/tmp");
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        found = found || strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    if (entries)
        closedir(entries);
    return !found;
}

static void all_gone(void)
{
    ck_assert_msg(wait_until(is_gone, NULL, CLUSTER_PATIENCE_MS), "a step has left its folder");
}

static void says(struct process *process, int code, const char *words)
{
    ck_assert_int_eq(process_wait(process, 2 * CLUSTER_PATIENCE_MS), code);
    const char *text = code ? process_errors(process) : process_output(process);
    ck_assert_msg(strstr(text, words), "no \"%s\" in: %.900s", words, text);
    process_free(process);
}

/* Somebody has made the folders' names before, which nobody can keep for himself. */
static void names_are_taken(bool taken)
{
    char folder[128];
    for (int node = 0; node < 2; node++) {
        snprintf(folder, sizeof(folder), "/tmp/shoal-step-%u-%d.0.0-%d", (unsigned)geteuid(),
                 (int)getpid(), node);
        ck_assert_int_eq(taken ? mkdir(folder, 0755) : rmdir(folder), 0);
    }
}

/* The last task comes first, and waits for its node's first. */
START_TEST(test_two_nodes)
{
    if (_i)
        names_are_taken(true);
    struct process *tasks[RANKS];
    char words[64];
    for (int rank = RANKS - 1; rank >= 0; rank--)
        tasks[rank] = task(rank, NULL, first);
    for (int rank = 0; rank < RANKS; rank++) {
        snprintf(words, sizeof(words), "rank %d of 4: 4 40 400 6", rank);
        says(tasks[rank], 0, words);
    }
    if (_i)
        names_are_taken(false);
    all_gone();
}
END_TEST

/* A task of a step of two on one node, which is its first by what srun says, or is not. */
static struct process *task_alone(int rank, bool is_first, const char *script)
{
    char variables[2][64];
    snprintf(variables[0], 64, "SLURM_PROCID=%d", rank);
    snprintf(variables[1], 64, "SLURM_LOCALID=%d", is_first ? 0 : 1);
    const char *environment[] = {variables[0],
                                 variables[1],
                                 job,
                                 "SLURM_NODEID=0",
                                 "SLURM_STEP_ID=0",
                                 "SLURM_STEP_NUM_NODES=1",
                                 "SLURM_STEP_NUM_TASKS=2",
                                 "SHOAL_TIMEOUT_MS=60000",
                                 NULL};
    const char *argv[] = {"sh", "-ec", script, NULL};
    return process_start(&(struct process_start){.argv = argv, .environment = environment});
}

/* The next program of a task finds no daemon that is just ending, nor one that takes its folder. */
START_TEST(test_programs_in_turn)
{
    if (_i)
        names_are_taken(true);
    static const char script[] = "for i in 1 2 3 4 5 6; do " CLUSTER_BIN "shoal-first; done";
    struct process *tasks[] = {task_alone(0, true, script), task_alone(1, false, script)};
    says(tasks[1], 0, "rank 1 of 2: ");
    says(tasks[0], 0, "rank 0 of 2: ");
    if (_i)
        names_are_taken(false);
    all_gone();
}
END_TEST

/* Both have a daemon started, and get the same one. */
START_TEST(test_two_firsts)
{
    struct process *tasks[] = {task_alone(0, true, CLUSTER_BIN "shoal-first"),
                               task_alone(1, true, CLUSTER_BIN "shoal-first")};
    says(tasks[1], 0, "rank 1 of 2: ");
    says(tasks[0], 0, "rank 0 of 2: ");
    all_gone();
}
END_TEST

static bool connects(void *fd)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(port_number),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return connect(*(int *)fd, (struct sockaddr *)&address, sizeof(address)) == 0;
}

/* One after the other they would take longer than the nodes have. The first node may have few
 * descriptors only softly, and sends the second away at first. */
START_TEST(test_silent_strangers)
{
    enum { STRANGERS = 100 };
    int strangers[STRANGERS];
    struct process *tasks[RANKS];
    static const char script[] = "ulimit -Sn 64; REFUSE_ONCE=1 exec " CLUSTER_BIN "shoal-first";
    const char *argv[] = {"sh", "-c", script, NULL};
    for (int rank = 0; rank < 2; rank++)
        tasks[rank] = task(rank, NULL, argv);
    for (int i = 0; i < STRANGERS; i++) {
        strangers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ck_assert(wait_until(connects, &strangers[i], CLUSTER_PATIENCE_MS));
    }
    for (int rank = 2; rank < RANKS; rank++)
        tasks[rank] = task(rank, NULL, first);
    for (int rank = 0; rank < RANKS; rank++)
        says(tasks[rank], 0, " of 4: 4 40 400 6");
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    char file[PATH_MAX];
    unsigned long soft = 0;
    snprintf(file, sizeof(file), "%s/unmunge.limit", directory);
    FILE *in = fopen(file, "r");
    ck_assert_ptr_nonnull(in);
    ck_assert(fscanf(in, "%lu", &soft) != 1 || soft > 64);
    fclose(in);
    all_gone();
}
END_TEST

/* Nobody opens the pipe: the folder goes all the same. */
START_TEST(test_nobody)
{
    char folder[128];
    snprintf(folder, sizeof(folder), "/tmp/shoal-step-%u-%d.0.0-0", (unsigned)geteuid(),
             (int)getpid());
    const char *argv[] = {CLUSTER_BIN "shoalrun", "--step-daemon", folder, NULL};
    const char *environment[] = {job, "SLURM_NODEID=0", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_NODES=1",
                                 NULL};
    ck_assert_int_eq(mkdir(folder, 0700), 0); /* as the library does */
    struct process *process =
        process_start(&(struct process_start){.argv = argv, .environment = environment});
    says(process, 0, "");
    ck_assert(!is_gone(NULL));
    all_gone();
}
END_TEST

/* Who cannot be known as the same user gets no secret, and the ranks of both nodes hear why,
 * whichever of them has come first. */
START_TEST(test_another_user)
{
    struct process *tasks[2];
    const char *argv[] = {"env", "FAKE_UID=4294967294", first[0], NULL};
    tasks[0] = task(0, "SHOAL_TIMEOUT_MS=2000", first);
    tasks[1] = task(2, "SHOAL_TIMEOUT_MS=2000", argv);
    says(tasks[0], 1, "1 of 2 nodes have not come for the daemons of step slurm-");
    says(tasks[1], 1, " of step slurm-");
    all_gone();
}
END_TEST

/* The default is not looked for where a socket is named, and what is wrong is said at once. */
START_TEST(test_not_started)
{
    says(task(0, "SHOAL_SOCKET=/tmp/shoal-no-such-socket", first), 1,
         "no daemon answers at socket /tmp/shoal-no-such-socket");
    const char *wrong[] = {"env", "SLURM_STEP_NUM_NODES=0", first[0], NULL};
    struct process *second = task(1, NULL, wrong); /* waits for the first, and hears the same */
    says(task(0, NULL, wrong), 1, "SLURM_STEP_NUM_NODES: got \"0\"");
    says(second, 1, "SLURM_STEP_NUM_NODES: got \"0\"");
    all_gone();
    says(task(1, "SHOAL_TIMEOUT_MS=200", first), 1, "the first task of this node has not opened");
    all_gone();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("step_daemon");
    TCase *tests = tcase_create("processes");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_loop_test(tests, test_two_nodes, 0, 2);
    tcase_add_loop_test(tests, test_programs_in_turn, 0, 2);
    tcase_add_test(tests, test_two_firsts);
    tcase_add_test(tests, test_silent_strangers);
    tcase_add_test(tests, test_nobody);
    tcase_add_test(tests, test_another_user);
    tcase_add_test(tests, test_not_started);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
