#include "common/log/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/error.h"
#include "tests/lib/suite.h"

/* Return what was written since the last call. */
static ssize_t take(int fd, char *text, size_t bytes)
{
    ssize_t got = read(fd, text, bytes - 1);
    text[got > 0 ? got : 0] = '\0';
    return got;
}

static int open_log(struct log *log, enum log_level level, bool journal)
{
    int fds[2];
    ck_assert_int_eq(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    log_init(log, "shoald", level, fds[1], journal);
    close(fds[1]); /* the log has a description of its own */
    return fds[0];
}

static void close_log(struct log *log, int reader)
{
    log_close(log);
    close(reader);
}

START_TEST(a_line_has_time_program_level_and_text)
{
    struct log log;
    int reader = open_log(&log, LOG_LEVEL_INFO, false);
    char line[512];
    log_info(&log, "node %s has %d ranks", "a", 4);
    ck_assert_int_gt(take(reader, line, sizeof(line)), 0);
    int year, month, day, hour, minute, second, ms, used = 0;
    int fields = sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %n", &year, &month, &day, &hour,
                        &minute, &second, &ms, &used);
    ck_assert_int_eq(fields, 7);
    ck_assert_int_ge(year, 2024);
    ck_assert_str_eq(line + used, "shoald info: node a has 4 ranks\n");
    close_log(&log, reader);
}
END_TEST

START_TEST(the_journal_gets_priorities)
{
    struct log log;
    int reader = open_log(&log, LOG_LEVEL_DEBUG, true);
    static const char *const expected[] = {"<3>text\n", "<4>text\n", "<6>text\n", "<7>text\n"};
    for (int level = LOG_LEVEL_ERROR; level <= LOG_LEVEL_DEBUG; level++) {
        char line[128];
        log_write(&log, (enum log_level)level, "text");
        take(reader, line, sizeof(line));
        ck_assert_str_eq(line, expected[level]);
    }
    close_log(&log, reader);
}
END_TEST

START_TEST(levels_above_the_logs_are_dropped)
{
    for (int most = LOG_LEVEL_ERROR; most <= LOG_LEVEL_DEBUG; most++) {
        struct log log;
        int reader = open_log(&log, (enum log_level)most, true);
        for (int level = LOG_LEVEL_ERROR; level <= LOG_LEVEL_DEBUG; level++) {
            char line[128];
            log_write(&log, (enum log_level)level, "%d", level);
            ck_assert_int_eq(take(reader, line, sizeof(line)) > 0, level <= most);
        }
        close_log(&log, reader);
    }
}
END_TEST

START_TEST(no_log_and_no_descriptor_are_silent)
{
    struct log log;
    log_init(&log, "shoald", LOG_LEVEL_DEBUG, -1, false);
    log_error(&log, "nobody reads this %d", 1);
    log_error(NULL, "nor this %d", 2);
    ck_assert_int_eq(log.fd, -1);
}
END_TEST

START_TEST(an_event_stays_one_line)
{
    struct log log;
    int reader = open_log(&log, LOG_LEVEL_INFO, true);
    char line[128];
    log_warning(&log, "%s", "a\nb\r\tc\x1b[2Jd");
    take(reader, line, sizeof(line));
    ck_assert_str_eq(line, "<4>a\\u000ab\\u000d\\u0009c\\u001b[2Jd\n");
    close_log(&log, reader);
}
END_TEST

START_TEST(bytes_above_ascii_are_kept)
{
    struct log log;
    int reader = open_log(&log, LOG_LEVEL_INFO, true);
    char line[128];
    log_info(&log, "%s",
             "n\xc3\xb6"
             "de");
    take(reader, line, sizeof(line));
    ck_assert_str_eq(line, "<6>n\xc3\xb6"
                           "de\n");
    close_log(&log, reader);
}
END_TEST

START_TEST(long_lines_are_cut_and_end)
{
    struct log log;
    int reader = open_log(&log, LOG_LEVEL_INFO, true);
    char words[4096], line[8192];
    for (size_t length = 2030; length < 2060; length++) {
        memset(words, 'x', length);
        words[length] = '\0';
        log_info(&log, "%s", words);
        ssize_t got = take(reader, line, sizeof(line));
        ck_assert_int_gt(got, 2000);
        ck_assert_int_le(got, 2048);
        ck_assert_int_eq(line[got - 1], '\n');
        ck_assert_int_eq(line[got - 2], 'x');
        ck_assert_ptr_eq(strchr(line, '\n'), line + got - 1);
    }
    close_log(&log, reader);
}
END_TEST

START_TEST(a_long_program_name_is_cut)
{
    struct log log;
    int fds[2];
    ck_assert_int_eq(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    log_init(&log, "a-program-with-a-name-beyond-all-measure", LOG_LEVEL_INFO, fds[1], false);
    ck_assert_uint_eq(strlen(log.program), sizeof(log.program) - 1);
    log_info(&log, "text");
    char line[256];
    take(fds[0], line, sizeof(line));
    ck_assert_ptr_nonnull(strstr(line, "a-program-with-a-name-beyond-al info: text\n"));
    close(fds[1]);
    close_log(&log, fds[0]);
}
END_TEST

START_TEST(level_names_go_there_and_back)
{
    for (int level = LOG_LEVEL_ERROR; level <= LOG_LEVEL_DEBUG; level++) {
        enum log_level parsed = LOG_LEVEL_DEBUG;
        ck_assert_int_eq(log_level_parse(log_level_name((enum log_level)level), &parsed), 0);
        ck_assert_int_eq((int)parsed, level);
    }
    enum log_level untouched = LOG_LEVEL_WARNING;
    static const char *const wrong[] = {"", "Error", "errors", "trace", "info ", "3"};
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        ck_assert_int_eq(log_level_parse(wrong[i], &untouched), ERR_INVALID);
        ck_assert_int_eq(untouched, LOG_LEVEL_WARNING);
    }
}
END_TEST

#define WRITERS 4
#define LINES 200

static void *write_lines(void *argument)
{
    for (int i = 0; i < LINES; i++)
        log_info(argument, "0123456789012345678901234567890123456789");
    return NULL;
}

/* Lines of several threads do not mix: each is one write. */
START_TEST(threads_do_not_mix_their_lines)
{
    FILE *file = tmpfile();
    struct log log;
    log_init(&log, "shoald", LOG_LEVEL_INFO, fileno(file), true);
    fcntl(log.fd, F_SETFL, fcntl(log.fd, F_GETFL) | O_APPEND);
    pthread_t threads[WRITERS];
    for (int i = 0; i < WRITERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, write_lines, &log), 0);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    rewind(file);
    char line[256];
    int count = 0;
    for (; fgets(line, sizeof(line), file); count++) {
        if (strcmp(line, "<6>0123456789012345678901234567890123456789\n") != 0)
            ck_abort_msg("%s", line);
    }
    ck_assert_int_eq(count, WRITERS * LINES);
    fclose(file);
}
END_TEST

/* A log to a pipe or socket whose reader has stopped, until a line has been dropped. The lines that
 * were written. */
static int write_until_dropped(struct log *log, int fd)
{
    log_init(log, "shoald", LOG_LEVEL_INFO, fd, true);
    int lines = 0;
    for (; atomic_load(&log->dropped) == 0 && lines < 1000000; lines++)
        log_info(log, "line %d", lines);
    ck_assert_uint_eq(atomic_load(&log->dropped), 1);
    return lines - 1;
}

/* All that is there to be read, a line a call. */
static int next_line(FILE *reader, char *line, int bytes)
{
    return fgets(line, bytes, reader) ? 1 : 0;
}

static void check_drops_are_said(int reader_fd, int writer_fd)
{
    ck_assert_int_eq(fcntl(reader_fd, F_SETFL, O_NONBLOCK), 0);
    int flags = fcntl(writer_fd, F_GETFL);
    ck_assert_int_eq(flags & O_NONBLOCK, 0);
    struct log log;
    int written = write_until_dropped(&log, writer_fd);
    for (int i = 0; i < 41; i++)
        log_warning(&log, "nobody reads this");
    ck_assert_uint_eq(atomic_load(&log.dropped), 42);
    ck_assert_int_eq(fcntl(writer_fd, F_GETFL), flags);

    FILE *reader = fdopen(reader_fd, "r");
    char line[256], expected[256];
    for (int i = 0; i < written; i++) {
        snprintf(expected, sizeof(expected), "<6>line %d\n", i);
        ck_assert_int_eq(next_line(reader, line, sizeof(line)), 1);
        ck_assert_str_eq(line, expected);
    }
    ck_assert_int_eq(next_line(reader, line, sizeof(line)), 0);
    clearerr(reader);

    log_info(&log, "read again");
    log_info(&log, "and on");
    ck_assert_int_eq(next_line(reader, line, sizeof(line)), 1);
    ck_assert_str_eq(line, "<4>42 lines of this log were dropped: its reader was slow\n");
    ck_assert_int_eq(next_line(reader, line, sizeof(line)), 1);
    ck_assert_str_eq(line, "<6>read again\n");
    ck_assert_int_eq(next_line(reader, line, sizeof(line)), 1);
    ck_assert_str_eq(line, "<6>and on\n");
    ck_assert_uint_eq(atomic_load(&log.dropped), 0);
    log_close(&log);
    fclose(reader);
    ck_assert_int_eq(close(writer_fd), 0);
}

START_TEST(a_pipe_that_nobody_reads_stops_nobody)
{
    int fds[2];
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    check_drops_are_said(fds[0], fds[1]);
}
END_TEST

START_TEST(a_socket_that_nobody_reads_stops_nobody)
{
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    check_drops_are_said(fds[0], fds[1]);
}
END_TEST

/* A terminal may take part of a line. It counts as dropped, and what is said of it begins a line.
 */
START_TEST(a_terminal_that_stops_stops_nobody)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(master, 0);
    ck_assert_int_eq(grantpt(master), 0);
    ck_assert_int_eq(unlockpt(master), 0);
    int terminal = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(terminal, 0);
    struct log log;
    log_init(&log, "shoald", LOG_LEVEL_INFO, terminal, true);
    for (int i = 0; i < 1000000 && atomic_load(&log.dropped) == 0; i++)
        log_info(&log, "0123456789012345678901234567890123456789");
    ck_assert_uint_eq(atomic_load(&log.dropped), 1);

    ck_assert_int_eq(fcntl(master, F_SETFL, O_NONBLOCK), 0);
    char text[1 << 16] = "";
    size_t used = 0;
    for (int i = 0; i < 1000 && !strstr(text, "read again"); i++) {
        ssize_t got;
        while ((got = read(master, text + used, sizeof(text) - 1 - used)) > 0)
            used += (size_t)got;
        text[used] = '\0';
        log_info(&log, "read again");
    }
    const char *notice = strstr(text, "lines of this log were dropped");
    ck_assert_ptr_nonnull(notice);
    while (*notice != '\n' && notice > text)
        notice--;
    ck_assert_int_eq(strncmp(notice, "\n<4>", 4), 0);
    log_close(&log);
    close(terminal);
    close(master);
}
END_TEST

/* Threads that write at once to a reader that stops: every line has gone or was counted. */
START_TEST(dropped_lines_of_threads_are_all_counted)
{
    int fds[2];
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    ck_assert_int_ge(fcntl(fds[1], F_SETPIPE_SZ, 4096), 4096);
    struct log log;
    log_init(&log, "shoald", LOG_LEVEL_INFO, fds[1], true);
    pthread_t threads[WRITERS];
    for (int i = 0; i < WRITERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, write_lines, &log), 0);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    unsigned long dropped = atomic_load(&log.dropped);
    log_close(&log);
    close(fds[1]);
    FILE *reader = fdopen(fds[0], "r");
    char line[256];
    unsigned long count = 0;
    while (fgets(line, sizeof(line), reader))
        count++;
    ck_assert_uint_gt(count, 0);
    ck_assert_uint_eq(count + dropped, WRITERS * LINES);
    fclose(reader);
}
END_TEST

/* Lines that are lost because nobody is left to read are not counted: there is no next line. */
START_TEST(a_pipe_without_a_reader_is_silent)
{
    signal(SIGPIPE, SIG_IGN);
    int fds[2];
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    struct log log;
    log_init(&log, "shoald", LOG_LEVEL_INFO, fds[1], true);
    close(fds[0]);
    log_info(&log, "nobody is there");
    ck_assert_uint_eq(atomic_load(&log.dropped), 0);
    log_close(&log);
    close(fds[1]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log");
    TCase *tests = tcase_create("log");
    tcase_add_test(tests, a_line_has_time_program_level_and_text);
    tcase_add_test(tests, the_journal_gets_priorities);
    tcase_add_test(tests, levels_above_the_logs_are_dropped);
    tcase_add_test(tests, no_log_and_no_descriptor_are_silent);
    tcase_add_test(tests, an_event_stays_one_line);
    tcase_add_test(tests, bytes_above_ascii_are_kept);
    tcase_add_test(tests, long_lines_are_cut_and_end);
    tcase_add_test(tests, a_long_program_name_is_cut);
    tcase_add_test(tests, level_names_go_there_and_back);
    tcase_add_test(tests, threads_do_not_mix_their_lines);
    tcase_add_test(tests, a_pipe_that_nobody_reads_stops_nobody);
    tcase_add_test(tests, a_socket_that_nobody_reads_stops_nobody);
    tcase_add_test(tests, a_terminal_that_stops_stops_nobody);
    tcase_add_test(tests, dropped_lines_of_threads_are_all_counted);
    tcase_add_test(tests, a_pipe_without_a_reader_is_silent);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
