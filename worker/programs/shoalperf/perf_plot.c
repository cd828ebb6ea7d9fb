#include "worker/programs/shoalperf/perf_plot.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "worker/programs/shoalperf/perf_options.h"

/* Sizes of a panel, in pixels. */
#define PANEL_WIDTH 460
#define PANEL_HEIGHT 340
#define LEFT 58
#define RIGHT 14
#define TOP 34
#define BOTTOM 92
#define LEGEND_ROW 16
#define LEGEND_WIDTH 190
#define TICKS_MAX 10

/* --- the file ------------------------------------------------------------------------------- */

int perf_plot_open(struct perf_plot *plot, const char *path, struct error *error)
{
    *plot = (struct perf_plot){.path = path, .fd = -1};
    if (!path)
        return 0;
    plot->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    plot->made = plot->fd >= 0;
    /* Not waiting for a reader, should it be a pipe with a name. */
    if (plot->fd < 0 && errno == EEXIST)
        plot->fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    if (plot->fd < 0 || fcntl(plot->fd, F_SETFL, 0) != 0)
        return error_set_errno(error, errno, "--plot %s", path);
    return 0;
}

int perf_plot_add(struct perf_plot *plot, const struct perf_row *row, struct error *error)
{
    if (!plot->path)
        return 0;
    if (plot->count == plot->room) {
        size_t room = plot->room ? 2 * plot->room : 64;
        struct perf_row *rows = realloc(plot->rows, room * sizeof(*rows));
        if (!rows)
            return error_set(error, ERR_MEMORY, "--plot: out of memory");
        plot->rows = rows;
        plot->room = room;
    }
    plot->rows[plot->count++] = *row;
    return 0;
}

static int picture_write(struct perf_plot *plot, struct error *error)
{
    struct stat is;
    /* Drop what a file has; a pipe or a device has nothing to drop. */
    bool file = fstat(plot->fd, &is) == 0 && S_ISREG(is.st_mode);
    if (file && ftruncate(plot->fd, 0) != 0)
        return error_set_errno(error, errno, "--plot %s", plot->path);
    FILE *out = fdopen(plot->fd, "w");
    if (!out)
        return error_set_errno(error, errno, "--plot %s", plot->path);
    plot->fd = -1;
    perf_plot_draw(out, plot->rows, plot->count);
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed)
        return error_set_errno(error, errno, "--plot %s", plot->path);
    return 0;
}

int perf_plot_close(struct perf_plot *plot, bool whole, struct error *error)
{
    int result = 0;
    if (plot->path && plot->fd >= 0 && whole && plot->count)
        result = picture_write(plot, error);
    else if (plot->path && plot->fd >= 0 && plot->made)
        unlink(plot->path);
    if (plot->path && plot->fd >= 0)
        close(plot->fd);
    free(plot->rows);
    *plot = (struct perf_plot){.fd = -1};
    return result;
}

/* --- axes ----------------------------------------------------------------------------------- */

enum figure { FIGURE_BUSBW, FIGURE_ALGBW, FIGURE_TIME };

static double figure_of(const struct perf_row *row, enum figure figure)
{
    if (figure == FIGURE_TIME)
        return row->time_us;
    return figure == FIGURE_BUSBW ? perf_busbw_GBps(row) : perf_algbw_GBps(row);
}

struct axes {
    const struct perf_row *rows;
    size_t count;
    int least_exponent, most_exponent; /* of sizes, to the base 2 */
    int least_decade, most_decade;     /* of figures */
};

static void axes_widen(struct axes *axes, double value)
{
    if (!(value > 0))
        return; /* a bus of one rank: no logarithm */
    int least = (int)floor(log10(value)), most = (int)ceil(log10(value));
    if (axes->most_decade < axes->least_decade)
        axes->least_decade = least, axes->most_decade = most;
    axes->least_decade = least < axes->least_decade ? least : axes->least_decade;
    axes->most_decade = most > axes->most_decade ? most : axes->most_decade;
}

static struct axes axes_make(const struct perf_row *rows, size_t count, bool time)
{
    struct axes axes = {rows, count, 63, 0, 1, 0};
    for (size_t i = 0; i < count; i++) {
        double exponent = log2((double)perf_row_bytes(&rows[i]));
        int least = (int)floor(exponent), most = (int)ceil(exponent);
        axes.least_exponent = least < axes.least_exponent ? least : axes.least_exponent;
        axes.most_exponent = most > axes.most_exponent ? most : axes.most_exponent;
        if (time)
            axes_widen(&axes, figure_of(&rows[i], FIGURE_TIME));
        else
            axes_widen(&axes, figure_of(&rows[i], FIGURE_BUSBW));
        if (!time)
            axes_widen(&axes, figure_of(&rows[i], FIGURE_ALGBW));
    }
    if (axes.most_exponent <= axes.least_exponent)
        axes.most_exponent = axes.least_exponent + 1;
    if (axes.most_decade <= axes.least_decade)
        axes.most_decade = axes.least_decade + 1;
    return axes;
}

static double axes_x(const struct axes *axes, double exponent)
{
    double place = (exponent - axes->least_exponent) / (axes->most_exponent - axes->least_exponent);
    return LEFT + place * (PANEL_WIDTH - LEFT - RIGHT);
}

static double axes_y(const struct axes *axes, double decade)
{
    double place = (decade - axes->least_decade) / (axes->most_decade - axes->least_decade);
    return PANEL_HEIGHT - BOTTOM - place * (PANEL_HEIGHT - TOP - BOTTOM);
}

static void axes_draw(FILE *out, const struct axes *axes, const char *unit)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    for (int decade = axes->least_decade; decade <= axes->most_decade; decade++) {
        double y = axes_y(axes, decade);
        fprintf(out,
                "<path d=\"M%d %.1fH%d\" class=\"grid\"/>\n"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                LEFT, y, PANEL_WIDTH - RIGHT, LEFT - 6, y + 4, pow(10, decade));
    }
    int step = (axes->most_exponent - axes->least_exponent + TICKS_MAX - 1) / TICKS_MAX;
    for (int power = axes->least_exponent; power <= axes->most_exponent; power += step) {
        double x = axes_x(axes, power);
        int unit_index = power / 10 > 4 ? 4 : power / 10;
        fprintf(out,
                "<path d=\"M%.1f %dV%d\" class=\"grid\"/>\n"
                "<text x=\"%.1f\" y=\"%d\" text-anchor=\"end\" "
                "transform=\"rotate(-35 %.1f %d)\">%llu %s</text>\n",
                x, TOP, PANEL_HEIGHT - BOTTOM, x, PANEL_HEIGHT - BOTTOM + 16, x,
                PANEL_HEIGHT - BOTTOM + 16, 1ull << (power - 10 * unit_index), units[unit_index]);
    }
    int middle = (TOP + PANEL_HEIGHT - BOTTOM) / 2;
    fprintf(out,
            "<text x=\"14\" y=\"%d\" text-anchor=\"middle\" transform=\"rotate(-90 14 %d)\">%s"
            "</text>\n",
            middle, middle, unit);
}

/* --- curves --------------------------------------------------------------------------------- */

static const char *curve_color(size_t index)
{
    static const char *const colors[] = {"#0b6e4f", "#c44536", "#3d5a98", "#b8860b",
                                         "#7b3f8c", "#2a9d8f", "#8c564b", "#555555"};
    return colors[index % (sizeof(colors) / sizeof(colors[0]))];
}

/* Whether the two are points of one curve: of one type and operation. */
static bool rows_alike(const struct perf_row *one, const struct perf_row *other)
{
    return one->dtype == other->dtype && one->op == other->op;
}

static size_t curves_count(const struct perf_row *rows, size_t count)
{
    size_t curves = count ? 1 : 0;
    for (size_t i = 1; i < count; i++)
        curves += !rows_alike(&rows[i - 1], &rows[i]);
    return curves;
}

static void point_place(const struct axes *axes, const struct perf_row *row, double value,
                        double *x, double *y)
{
    *x = axes_x(axes, log2((double)perf_row_bytes(row)));
    *y = axes_y(axes, log10(value));
}

/* The digits are those of perf_json_row. */
static void point_draw(FILE *out, const struct axes *axes, const struct perf_row *row, double value,
                       const char *color)
{
    double x, y;
    point_place(axes, row, value, &x, &y);
    fprintf(out,
            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.8\" fill=\"%s\"><title>%" PRIu64
            " bytes: %.3f us, algbw %.6f GB/s, busbw %.6f GB/s</title></circle>\n",
            x, y, color, perf_row_bytes(row), row->time_us, perf_algbw_GBps(row),
            perf_busbw_GBps(row));
}

static void curve_draw(FILE *out, const struct axes *axes, const struct perf_row *rows,
                       size_t count, enum figure figure, const char *color)
{
    char command = 'M';
    bool line = false;
    for (size_t i = 0; i < count; i++) {
        double value = figure_of(&rows[i], figure), x, y;
        if (!(value > 0))
            continue;
        point_place(axes, &rows[i], value, &x, &y);
        fprintf(out, "%s%c%.1f %.1f", line ? "" : "<path d=\"", command, x, y);
        command = 'L';
        line = true;
    }
    if (line)
        fprintf(out, "\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s/>\n", color,
                figure == FIGURE_ALGBW ? " stroke-dasharray=\"5,4\"" : "");
    for (size_t i = 0; i < count; i++)
        if (figure_of(&rows[i], figure) > 0)
            point_draw(out, axes, &rows[i], figure_of(&rows[i], figure), color);
}

static void legend_draw(FILE *out, size_t index, const char *color, bool dashed, const char *name,
                        const char *what)
{
    int x = LEFT + (int)(index % 2) * LEGEND_WIDTH;
    int y = PANEL_HEIGHT - 26 + (int)(index / 2) * LEGEND_ROW;
    fprintf(out,
            "<path d=\"M%d %dh20\" stroke=\"%s\" stroke-width=\"3\"%s/>\n"
            "<text x=\"%d\" y=\"%d\" text-anchor=\"start\">%s%s</text>\n",
            x, y - 4, color, dashed ? " stroke-dasharray=\"5,4\"" : "", x + 26, y, name, what);
}

static void curves_draw(FILE *out, const struct axes *axes, bool time)
{
    size_t curves = curves_count(axes->rows, axes->count), index = 0;
    for (size_t first = 0, end; first < axes->count; first = end, index++) {
        const struct perf_row *rows = &axes->rows[first];
        char name[64];
        bool op = collective_has_op(rows->collective);
        for (end = first + 1; end < axes->count && rows_alike(rows, &axes->rows[end]);)
            end++;
        snprintf(name, sizeof(name), "%s%s%s", dtype_name(rows->dtype), op ? " " : "",
                 op ? reduce_op_name(rows->op) : "");
        const char *color = curve_color(index);
        curve_draw(out, axes, rows, end - first, time ? FIGURE_TIME : FIGURE_BUSBW, color);
        legend_draw(out, index, color, false, name, time ? "" : ", busbw");
        if (!time && curves == 1) {
            curve_draw(out, axes, rows, end - first, FIGURE_ALGBW, curve_color(2));
            legend_draw(out, 1, curve_color(2), true, name, ", algbw");
        }
    }
}

static void panel_draw(FILE *out, const struct perf_row *rows, size_t count, bool time)
{
    struct axes axes = axes_make(rows, count, time);
    uint64_t wrong = 0;
    for (size_t i = 0; i < count; i++)
        wrong += rows[i].wrong;
    fprintf(out,
            "<g transform=\"translate(%d 0)\">\n"
            "<text x=\"%d\" y=\"20\" text-anchor=\"middle\" class=\"title\">%s, %u ranks on %u "
            "node%s%s</text>\n",
            time ? PANEL_WIDTH : 0, PANEL_WIDTH / 2, perf_collective_name(rows[0].collective),
            rows[0].ranks, rows[0].nodes, rows[0].nodes == 1 ? "" : "s",
            wrong ? ": WRONG RESULTS" : "");
    axes_draw(out, &axes, time ? "microseconds" : "GB/s");
    curves_draw(out, &axes, time);
    fputs("</g>\n", out);
}

void perf_plot_draw(FILE *out, const struct perf_row *rows, size_t count)
{
    size_t legends = curves_count(rows, count);
    int height = PANEL_HEIGHT + (legends > 4 ? (int)((legends - 3) / 2) * LEGEND_ROW : 0);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\">\n"
            "<style>text{font:12px sans-serif;fill:#222}.title{font-weight:bold}"
            ".grid{stroke:#ddd;fill:none}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            2 * PANEL_WIDTH, height, 2 * PANEL_WIDTH, height);
    panel_draw(out, rows, count, false);
    panel_draw(out, rows, count, true);
    fputs("</svg>\n", out);
}
