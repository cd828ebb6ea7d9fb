/* `shoalctl status --watch` on a terminal, over a real daemon: it fills the terminal, follows its
 * size, and leaves it as it was, however it ends. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"
#include "tests/lib/terminal.h"

#define ENTER "\033[?1049h\033[?25l\033[?7l"
#define LEAVE "\033[?7h\033[?25h\033[?1049l"
/* Longer than any test: what is drawn again is so for another reason. */
#define SECONDS "--watch=3600"

static struct cluster *cluster;

static void setup(void)
{
    cluster = cluster_start(2, NULL);
}

static void teardown(void)
{
    cluster_free(cluster);
}

static struct terminal *watch(const char *variable, unsigned columns, unsigned rows)
{
    const char *program = CLUSTER_BIN "shoalctl", *path = cluster->nodes[0].socket_path;
    const char *argv[] = {program, "status", SECONDS, "--socket", path, NULL};
    const char *environment[] = {variable, NULL};
    return terminal_start(argv, environment, columns, rows);
}

/* Lines and columns of the largest page that begins at or behind `from`; -1 lines: there is none.
 */
static int page_lines(const struct terminal *terminal, size_t from, int *widest)
{
    const char *page = strstr(terminal->text + from, "\033[H");
    int lines = 1, most = -1, column = 0;
    *widest = 0;
    for (const char *c = page; c && *c; c++) {
        if (strncmp(c, "\033[H", 3) == 0)
            lines = 1, column = 0;
        if (*c == '\033')
            c += 2 + strspn(c + 2, "?0123456789");
        else if (*c == '\n')
            lines++, column = 0;
        else if (*c != '\r')
            column++;
        *widest = column > *widest ? column : *widest;
        most = lines > most ? lines : most;
    }
    return most;
}

/* The program is drawn, and drawn again as soon as the size is another one. */
START_TEST(test_two_sizes)
{
    int widest;
    struct terminal *terminal = watch(NULL, 100, 30);
    ck_assert(terminal_wait_text(terminal, 0, "LINKS", CLUSTER_PATIENCE_MS));
    ck_assert(terminal_wait_text(terminal, 0, "\033[J", CLUSTER_PATIENCE_MS));
    ck_assert(strncmp(terminal->text, ENTER, strlen(ENTER)) == 0);
    ck_assert(strstr(terminal->text, "node0") != NULL);
    ck_assert(strstr(terminal->text, "NO JOBS") != NULL);
    ck_assert(strstr(terminal->text, "\033[7m") != NULL);
    ck_assert_int_le(page_lines(terminal, 0, &widest), 30);
    ck_assert_int_eq(widest, 100);

    size_t from = terminal->length;
    terminal_resize(terminal, 30, 5);
    ck_assert(terminal_wait_text(terminal, from, "NO JOBS", CLUSTER_PATIENCE_MS));
    process_signal(&(struct process){.pid = terminal->pid}, SIGTERM);
    ck_assert_int_eq(terminal_wait(terminal, CLUSTER_PATIENCE_MS), 128 + SIGTERM);
    ck_assert_int_le(page_lines(terminal, from, &widest), 5);
    ck_assert_int_eq(widest, 30);
    ck_assert_uint_ge(terminal->length, strlen(LEAVE));
    ck_assert_str_eq(terminal->text + terminal->length - strlen(LEAVE), LEAVE);
    terminal_free(terminal);
}
END_TEST

/* From a shell: ^Z gives the terminal back until it goes on; ^C ends it. */
START_TEST(test_keys)
{
    const char *path = cluster->nodes[0].socket_path;
    const char *shell = CLUSTER_BIN "shoalctl status " SECONDS " --socket \"$1\"; "
                                    "echo \"$?, stopped\"; fg >/dev/null; exit $?";
    const char *argv[] = {"/bin/sh", "-m", "-c", shell, "sh", path, NULL};
    const char *environment[] = {"NO_COLOR=1", NULL};
    struct terminal *terminal = terminal_start(argv, environment, 80, 24);
    ck_assert(terminal_wait_text(terminal, 0, "LINKS", CLUSTER_PATIENCE_MS));
    ck_assert_int_eq(write(terminal->fd, "\032", 1), 1);
    ck_assert(terminal_wait_text(terminal, 0, LEAVE, CLUSTER_PATIENCE_MS));
    ck_assert(terminal_wait_text(terminal, 0, "148, stopped", CLUSTER_PATIENCE_MS));
    size_t from = (size_t)(strstr(terminal->text, "148, stopped") - terminal->text);
    ck_assert(terminal_wait_text(terminal, from, ENTER, CLUSTER_PATIENCE_MS));
    ck_assert(terminal_wait_text(terminal, from, "LINKS", CLUSTER_PATIENCE_MS));
    from = terminal->length;
    ck_assert_int_eq(write(terminal->fd, "\003", 1), 1);
    ck_assert_int_eq(terminal_wait(terminal, CLUSTER_PATIENCE_MS), 128 + SIGINT);
    ck_assert_ptr_nonnull(strstr(terminal->text + from, LEAVE));
    ck_assert_ptr_null(strstr(terminal->text, "\033[7m"));
    ck_assert_ptr_null(strstr(terminal->text, "\033[0m"));
    terminal_free(terminal);
}
END_TEST

/* Where no shell would have it go on, as behind `ssh -t HOST COMMAND`, ^Z does not stop it. */
START_TEST(test_nobody_to_stop_for)
{
    struct terminal *terminal = watch(NULL, 80, 24);
    ck_assert(terminal_wait_text(terminal, 0, "LINKS", CLUSTER_PATIENCE_MS));
    size_t from = terminal->length;
    ck_assert_int_eq(write(terminal->fd, "\032", 1), 1);
    ck_assert(terminal_wait_text(terminal, from, LEAVE ENTER, CLUSTER_PATIENCE_MS));
    ck_assert_int_eq(write(terminal->fd, "\003", 1), 1);
    ck_assert_int_eq(terminal_wait(terminal, CLUSTER_PATIENCE_MS), 128 + SIGINT);
    terminal_free(terminal);
}
END_TEST

/* The error stands on the screen that was there before. A dumb terminal gets text alone. */
START_TEST(test_the_daemon_ends)
{
    struct terminal *terminal = watch("TERM=xterm", 80, 24), *dumb = watch("TERM=dumb", 80, 24);
    ck_assert(terminal_wait_text(terminal, 0, "LINKS", CLUSTER_PATIENCE_MS));
    ck_assert(terminal_wait_text(dumb, 0, "no jobs", CLUSTER_PATIENCE_MS));
    ck_assert_int_eq(cluster_stop(cluster), 0);
    ck_assert_int_eq(terminal_wait(terminal, CLUSTER_PATIENCE_MS), 1);
    const char *left = strstr(terminal->text, LEAVE);
    ck_assert_ptr_nonnull(left);
    ck_assert_ptr_nonnull(strstr(left, "shoalctl: the daemon at "));
    ck_assert_int_eq(terminal_wait(dumb, CLUSTER_PATIENCE_MS), 1);
    ck_assert_ptr_null(strchr(dumb->text, '\033'));
    terminal_free(terminal);
    terminal_free(dumb);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoalctl_watch");
    TCase *tests = tcase_create("terminal");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_two_sizes);
    tcase_add_test(tests, test_keys);
    tcase_add_test(tests, test_nobody_to_stop_for);
    tcase_add_test(tests, test_the_daemon_ends);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
