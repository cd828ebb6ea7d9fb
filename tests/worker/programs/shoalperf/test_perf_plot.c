/* The picture of shoalperf: well-formed, its points where the figures say, its file not touched
 * before there is a picture. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/suite.h"
#include "worker/programs/shoalperf/perf_plot.h"

#define ROWS 4
#define POINTS 12 /* of these, in three curves */
#define DEPTH_MAX 16

static struct perf_row row_of(uint64_t count, double time_us)
{
    return (struct perf_row){
        .collective = COLLECTIVE_ALL_REDUCE,
        .dtype = DTYPE_F32,
        .op = REDUCE_SUM,
        .root = -1,
        .count = count,
        .ranks = 4,
        .nodes = 2,
        .time_us = time_us,
        .checked = true,
    };
}

/* Sizes of 1 KiB to 1 GiB, each 1024 times the one before, in 10 us to 10 s. */
static void rows_fill(struct perf_row *rows)
{
    double time_us = 10;
    for (int i = 0; i < ROWS; i++, time_us *= 100)
        rows[i] = row_of(256ull << (10 * i), time_us);
    rows[ROWS - 1] = row_of(256ull << 20, 1e7);
    rows[2] = row_of(256ull << 15, 5000);
}

static char *draw(const struct perf_row *rows, size_t count)
{
    char *text;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    ck_assert_ptr_nonnull(out);
    perf_plot_draw(out, rows, count);
    fclose(out);
    return text;
}

/* Every element is closed in its turn, every attribute quoted, no bare < or &. */
static void check_well_formed(const char *text)
{
    char names[DEPTH_MAX][16];
    int depth = 0, elements = 0;
    for (const char *at = text; (at = strchr(at, '<'));) {
        const char *end = strchr(at, '>');
        ck_assert_ptr_nonnull(end);
        bool closing = at[1] == '/', alone = end[-1] == '/';
        size_t length = strcspn(at + 1 + closing, " />");
        ck_assert_uint_lt(length, sizeof(names[0]));
        int quotes = 0;
        for (const char *c = at + 1; c < end; c++) {
            quotes += *c == '"';
            ck_assert(*c != '<' && *c != '&' && (*c != '=' || c[1] == '"'));
        }
        ck_assert_int_eq(quotes % 2, 0);
        if (closing) {
            ck_assert_int_gt(depth, 0);
            depth--;
            ck_assert_msg(strlen(names[depth]) == length &&
                              strncmp(names[depth], at + 2, length) == 0,
                          "%.40s closes <%s>", at, names[depth]);
        } else if (!alone) {
            ck_assert_int_lt(depth, DEPTH_MAX);
            snprintf(names[depth++], sizeof(names[0]), "%.*s", (int)length, at + 1);
        }
        ck_assert(depth > 0 || strcmp(end + 1, "\n") == 0); /* one root */
        elements++;
        at = end;
    }
    ck_assert_int_eq(depth, 0);
    ck_assert_int_gt(elements, 10);
    ck_assert_ptr_null(strchr(text, '&'));
    ck_assert_ptr_null(strstr(text, "nan"));
    ck_assert_ptr_null(strstr(text, "inf"));
}

static int count_of(const char *text, const char *piece)
{
    int count = 0;
    for (; (text = strstr(text, piece)); text += strlen(piece))
        count++;
    return count;
}

START_TEST(test_points)
{
    struct perf_row rows[ROWS];
    rows_fill(rows);
    char *text = draw(rows, ROWS);
    check_well_formed(text);
    /* Each row has the figures that --json has, in each of three curves. */
    for (int i = 0; i < ROWS; i++) {
        char title[200];
        snprintf(title, sizeof(title),
                 "<title>%llu bytes: %.3f us, algbw %.6f GB/s, busbw %.6f GB/s</title>",
                 (unsigned long long)perf_row_bytes(&rows[i]), rows[i].time_us,
                 perf_algbw_GBps(&rows[i]), perf_busbw_GBps(&rows[i]));
        ck_assert_int_eq(count_of(text, title), 3);
    }
    ck_assert_int_eq(count_of(text, "<circle "), POINTS);
    ck_assert_int_eq(count_of(text, "all_reduce, 4 ranks on 2 nodes<"), 2);
    ck_assert_int_eq(count_of(text, ">float sum, busbw<"), 1);
    ck_assert_int_eq(count_of(text, ">float sum, algbw<"), 1);
    ck_assert_int_eq(count_of(text, ">float sum<"), 1);
    free(text);
}
END_TEST

/* The least and the greatest lie on the frame, the others between as their logarithms do. */
START_TEST(test_places)
{
    struct perf_row rows[ROWS];
    rows_fill(rows);
    char *text = draw(rows, ROWS);
    const char *panel = strstr(text, "<g transform=\"translate(460 0)\">");
    ck_assert_ptr_nonnull(panel);
    for (int i = 0; i < ROWS; i++) {
        double x, y;
        panel = strstr(panel, "<circle ");
        ck_assert_ptr_nonnull(panel);
        ck_assert_int_eq(sscanf(panel, "<circle cx=\"%lf\" cy=\"%lf\"", &x, &y), 2);
        panel++;
        double right = log2((double)perf_row_bytes(&rows[i])) - 10; /* of 20 from 1 KiB to 1 GiB */
        double up = log10(rows[i].time_us) - 1;                     /* of 6 from 10 us to 10 s */
        ck_assert_double_eq_tol(x, 58 + right / 20 * (460 - 58 - 14), 0.06);
        ck_assert_double_eq_tol(y, 340 - 92 - up / 6 * (340 - 34 - 92), 0.06);
    }
    ck_assert_int_eq(count_of(text, ">1 KiB<"), 2);
    ck_assert_int_eq(count_of(text, ">1 GiB<"), 2);
    ck_assert_int_eq(count_of(text, ">1e+07<"), 1);
    free(text);
}
END_TEST

/* One size; one rank, whose bus carries nothing; what is wrong is said. */
START_TEST(test_edges)
{
    struct perf_row row = row_of(1, 1);
    char *text = draw(&row, 1);
    check_well_formed(text);
    ck_assert_int_eq(count_of(text, "<circle "), 3);
    free(text);
    row.ranks = 1;
    row.wrong = 7;
    text = draw(&row, 1);
    check_well_formed(text);
    ck_assert_int_eq(count_of(text, "<circle "), 2);
    ck_assert_int_eq(count_of(text, "WRONG RESULTS"), 2);
    free(text);
    row.time_us = 0;
    text = draw(&row, 1);
    check_well_formed(text);
    ck_assert_int_eq(count_of(text, "<circle "), 0);
    free(text);
}
END_TEST

/* A curve for each type and operation, and room below for their names. */
START_TEST(test_many_curves)
{
    struct perf_row rows[20];
    for (int i = 0; i < 20; i++) {
        rows[i] = row_of(1000u << (i % 2), 10 + i);
        rows[i].dtype = (enum dtype)(i / 4);
        rows[i].op = i / 2 % 2 ? REDUCE_MAX : REDUCE_SUM;
    }
    char *text = draw(rows, 20);
    check_well_formed(text);
    ck_assert_int_eq(count_of(text, "<circle "), 40);
    ck_assert_int_eq(count_of(text, " max, busbw<"), 5);
    ck_assert_int_eq(count_of(text, "algbw<"), 0);
    int width, height;
    ck_assert_int_eq(sscanf(strstr(text, "viewBox"), "viewBox=\"0 0 %d %d\"", &width, &height), 2);
    ck_assert_int_ge(height, 340 - 26 + 4 * 16 + 10 /* below the fifth line */);
    free(text);
}
END_TEST

/* --- the file ------------------------------------------------------------------------------- */

static off_t size_of(const char *path)
{
    struct stat is;
    return stat(path, &is) == 0 ? is.st_size : -1;
}

START_TEST(test_file)
{
    char folder[] = "/tmp/shoal-plot-XXXXXX", path[64];
    struct perf_plot plot;
    struct error error = {0};
    struct perf_row row = row_of(1000, 10);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/plot.svg", folder);

    /* A run that fails leaves nothing, */
    ck_assert_int_eq(perf_plot_open(&plot, path, &error), 0);
    ck_assert_int_eq(size_of(path), 0);
    ck_assert_int_eq(perf_plot_add(&plot, &row, &error), 0);
    ck_assert_int_eq(perf_plot_close(&plot, false, &error), 0);
    ck_assert_int_eq(size_of(path), -1);

    /* one that is whole its picture, */
    ck_assert_int_eq(perf_plot_open(&plot, path, &error), 0);
    for (int i = 0; i < 200; i++)
        ck_assert_int_eq(perf_plot_add(&plot, &row, &error), 0);
    ck_assert_int_eq(perf_plot_close(&plot, true, &error), 0);
    off_t large = size_of(path);
    ck_assert_int_gt(large, 10000);

    /* which stays when another one fails, and is replaced by a shorter one. */
    ck_assert_int_eq(perf_plot_open(&plot, path, &error), 0);
    ck_assert_int_eq(perf_plot_close(&plot, false, &error), 0);
    ck_assert_int_eq(size_of(path), large);
    ck_assert_int_eq(perf_plot_open(&plot, path, &error), 0);
    ck_assert_int_eq(perf_plot_add(&plot, &row, &error), 0);
    ck_assert_int_eq(perf_plot_close(&plot, true, &error), 0);
    ck_assert_int_gt(size_of(path), 100);
    ck_assert_int_lt(size_of(path), large);
    unlink(path);
    rmdir(folder);
}
END_TEST

START_TEST(test_files_refused)
{
    char folder[] = "/tmp/shoal-plot-XXXXXX", pipe[64];
    struct perf_plot plot;
    struct error error = {0};
    struct perf_row row = row_of(1000, 10);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(perf_plot_open(&plot, "/none/plot.svg", &error), ERR_SYSTEM);
    ck_assert_str_eq(error.text, "--plot /none/plot.svg: No such file or directory");
    ck_assert_int_eq(perf_plot_open(&plot, folder, &error), ERR_SYSTEM);
    ck_assert_ptr_nonnull(strstr(error.text, "Is a directory"));
    /* A pipe that nobody reads holds nobody up. */
    snprintf(pipe, sizeof(pipe), "%s/pipe", folder);
    ck_assert_int_eq(mkfifo(pipe, 0600), 0);
    ck_assert_int_eq(perf_plot_open(&plot, pipe, &error), ERR_SYSTEM);
    ck_assert_ptr_nonnull(strstr(error.text, "No such device or address"));
    unlink(pipe);
    rmdir(folder);
    ck_assert_int_eq(perf_plot_open(&plot, "/dev/full", &error), 0);
    ck_assert_int_eq(perf_plot_add(&plot, &row, &error), 0);
    ck_assert_int_eq(perf_plot_close(&plot, true, &error), ERR_SYSTEM);
    ck_assert_str_eq(error.text, "--plot /dev/full: No space left on device");
    /* None is wanted. */
    ck_assert_int_eq(perf_plot_open(&plot, NULL, &error), 0);
    ck_assert_int_eq(perf_plot_add(&plot, &row, &error), 0);
    ck_assert_int_eq(perf_plot_close(&plot, true, &error), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("perf_plot");
    TCase *picture = tcase_create("picture");
    tcase_add_test(picture, test_points);
    tcase_add_test(picture, test_places);
    tcase_add_test(picture, test_edges);
    tcase_add_test(picture, test_many_curves);
    suite_add_tcase(suite, picture);
    TCase *file = tcase_create("file");
    tcase_add_test(file, test_file);
    tcase_add_test(file, test_files_refused);
    suite_add_tcase(suite, file);
    return suite_main(suite);
}
