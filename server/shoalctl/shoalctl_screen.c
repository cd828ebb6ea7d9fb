#include "server/shoalctl/shoalctl_screen.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/shown.h"
#include "common/text/size_text.h"
#include "server/shoalctl/shoalctl_print.h"

#define CELL_BYTES 512
#define HEAD_LINES 3
#define WARNINGS_LEAST 3 /* lines that other sections leave to warnings */
#define NAME_COLUMNS 16

/* Colours and styles of ECMA-48. */
#define BOLD "1"
#define TITLE "7"
#define RED "31"
#define GREEN "32"
#define YELLOW "33"

/* --- lines ---------------------------------------------------------------------------------- */

struct canvas {
    FILE *out;
    struct screen_size size;
    unsigned line, column; /* where the next character goes; line 0: none has begun */
};

/* false: there is no room for another. */
static bool line_begin(struct canvas *canvas)
{
    if (canvas->line == canvas->size.rows)
        return false;
    /* Before it is written: behind a full line the cursor is still on its last character. */
    fputs(canvas->line ? "\r\n\033[K" : "\033[H\033[K", canvas->out);
    canvas->line++;
    canvas->column = 0;
    return true;
}

static unsigned lines_left(const struct canvas *canvas)
{
    return canvas->size.rows - canvas->line;
}

static void style_begin(const struct canvas *canvas, const char *style)
{
    if (canvas->size.color && style)
        fprintf(canvas->out, "\033[%sm", style);
}

static void style_end(const struct canvas *canvas, const char *style)
{
    if (canvas->size.color && style)
        fputs("\033[0m", canvas->out);
}

/* Put as many characters of the text as there is room for, in `width` columns; 0: as long as it is.
 * Bytes that are no text become '?'. */
static void text_put(struct canvas *canvas, const char *style, unsigned width, const char *text)
{
    char clean[CELL_BYTES];
    shown_copy(clean, sizeof(clean), text);
    unsigned room = canvas->size.columns - canvas->column, put = 0;
    if (width && width < room)
        room = width;
    style_begin(canvas, style);
    for (const char *c = clean; *c; c++) {
        bool begins = ((unsigned char)*c & 0xc0) != 0x80; /* a character of UTF-8 */
        if (begins && put == room)
            break;
        put += begins;
        fputc(*c, canvas->out);
    }
    for (; put < width && put < room; put++)
        fputc(' ', canvas->out);
    style_end(canvas, style);
    canvas->column += put;
}

static void text_print(struct canvas *canvas, const char *style, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void text_print(struct canvas *canvas, const char *style, const char *format, ...)
{
    char text[CELL_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    text_put(canvas, style, 0, text);
}

/* How much of the whole: "[|||   ]". */
static void bar_put(struct canvas *canvas, double part, double whole, unsigned width,
                    const char *style)
{
    double share = whole > 0 && part > 0 ? part / whole : 0;
    unsigned full = share >= 1 ? width : (unsigned)(share * width + 0.5);
    char bar[128];
    snprintf(bar, sizeof(bar), "%.*s", (int)full,
             "||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||");
    text_put(canvas, NULL, 1, "[");
    if (width)
        text_put(canvas, style, width, bar);
    text_put(canvas, NULL, 2, "]");
}

static void title_put(struct canvas *canvas, const char *title)
{
    if (lines_left(canvas) > 2)
        line_begin(canvas);
    if (line_begin(canvas))
        text_put(canvas, TITLE, canvas->size.columns, title);
}

static void more_put(struct canvas *canvas, size_t count)
{
    if (count && line_begin(canvas))
        text_print(canvas, NULL, "and %zu more", count);
}

/* --- values --------------------------------------------------------------------------------- */

static double number_of(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && *text ? text : "-";
}

static void bytes_text(double bytes, char *text, size_t room)
{
    if (bytes >= 0 && bytes < 1e18)
        size_text_print((uint64_t)bytes, text, room);
    else
        snprintf(text, room, "-");
}

/* Return the entry's peer or job in the document before; NULL where it was not there, or
 * elsewhere. */
static const json_t *entry_before(const struct screen *screen, const char *list, const char *key,
                                  size_t index, const json_t *entry)
{
    const json_t *before = json_array_get(json_object_get(screen->before, list), index);
    const json_t *one = json_object_get(before, key), *other = json_object_get(entry, key);
    return one && other && json_equal(one, other) ? before : NULL;
}

/* By how much a number has grown in a second; 0 where that is not known. */
static double rate_of(const struct screen *screen, const json_t *before, const json_t *entry,
                      const char *key)
{
    double grown = before ? number_of(entry, key) - number_of(before, key) : 0;
    return grown > 0 && screen->between_s > 0 ? grown / screen->between_s : 0;
}

struct link {
    const json_t *peer;
    size_t index;
    bool up;
    double in_Bps, out_Bps;
};

/* Links that need a look come first: those that are down, then those that are used most. */
static int link_compare(const void *one, const void *other)
{
    const struct link *a = one, *b = other;
    if (a->up != b->up)
        return a->up ? 1 : -1;
    double of_a = a->in_Bps + a->out_Bps, of_b = b->in_Bps + b->out_Bps;
    if (of_a != of_b)
        return of_a < of_b ? 1 : -1;
    return a->index < b->index ? -1 : 1;
}

/* The caller frees them; NULL where there are none, or no memory for them. */
static struct link *links_of(const struct screen *screen, size_t *count)
{
    const json_t *peers = json_object_get(screen->status, "peers"), *peer;
    *count = json_array_size(peers);
    struct link *links = *count ? calloc(*count, sizeof(*links)) : NULL;
    if (!links)
        *count = 0;
    for (size_t i = 0; i < *count; i++) {
        peer = json_array_get(peers, i);
        const json_t *before = entry_before(screen, "peers", "node", i, peer);
        links[i] = (struct link){peer, i, strcmp(text_of(peer, "state"), "up") == 0,
                                 rate_of(screen, before, peer, "bytes_in"),
                                 rate_of(screen, before, peer, "bytes_out")};
    }
    return links;
}

void screen_take(struct screen *screen, json_t *status, double after_s)
{
    json_decref(screen->before);
    screen->before = screen->status;
    screen->status = status;
    screen->between_s = after_s;
    size_t count;
    struct link *links = links_of(screen, &count);
    for (size_t i = 0; i < count; i++) {
        if (links[i].in_Bps > screen->fastest_Bps)
            screen->fastest_Bps = links[i].in_Bps;
        if (links[i].out_Bps > screen->fastest_Bps)
            screen->fastest_Bps = links[i].out_Bps;
    }
    free(links);
}

void screen_clear(struct screen *screen)
{
    json_decref(screen->status);
    json_decref(screen->before);
    *screen = (struct screen){0};
}

/* --- sections ------------------------------------------------------------------------------- */

static unsigned bar_width(const struct canvas *canvas)
{
    unsigned columns = canvas->size.columns;
    return columns < 70 ? 6 : columns > 130 ? 36 : (columns - 58) / 2;
}

static void head_draw(struct canvas *canvas, const json_t *status)
{
    char up[64], reserved[32], used[32], limit[32];
    double seconds = number_of(status, "uptime_s");
    shoalctl_format_duration(seconds > 0 ? (uint64_t)seconds : 0, up, sizeof(up));
    if (!line_begin(canvas))
        return;
    text_print(canvas, BOLD, "%s  node ", text_of(status, "software"));
    text_put(canvas, BOLD, 0, text_of(status, "node"));
    text_print(canvas, NULL, "  up %s  ", up);
    const char *state = text_of(status, "state");
    text_put(canvas, strcmp(state, "running") == 0 ? GREEN : YELLOW, 0, state);

    const json_t *memory = json_object_get(status, "memory");
    double whole = number_of(memory, "limit_bytes"), part = number_of(memory, "reserved_bytes");
    bytes_text(part, reserved, sizeof(reserved));
    bytes_text(number_of(memory, "used_bytes"), used, sizeof(used));
    bytes_text(whole, limit, sizeof(limit));
    if (!line_begin(canvas))
        return;
    text_put(canvas, NULL, 8, "memory");
    bar_put(canvas, part, whole, bar_width(canvas),
            part > 0.9 * whole   ? RED
            : part > 0.7 * whole ? YELLOW
                                 : GREEN);
    text_print(canvas, NULL, "%s reserved of %s, %s used", reserved, limit, used);

    const json_t *traffic = json_object_get(status, "traffic");
    if (!line_begin(canvas))
        return;
    text_put(canvas, NULL, 8, "traffic");
    text_print(canvas, NULL, "in %.2f GB/s, out %.2f GB/s; %.0f workers, %.0f slots",
               number_of(traffic, "in_GBps"), number_of(traffic, "out_GBps"),
               number_of(json_object_get(status, "workers"), "count"), number_of(status, "slots"));
}

static void job_draw(const struct screen *screen, struct canvas *canvas, size_t index)
{
    const json_t *job = json_array_get(json_object_get(screen->status, "jobs"), index);
    const json_t *before = entry_before(screen, "jobs", "name", index, job);
    const char *state = text_of(job, "state");
    const json_t *late = json_array_get(json_object_get(job, "late"), 0);
    char ranks[CELL_BYTES], rate[32], cell[64];
    if (!line_begin(canvas))
        return;
    text_put(canvas, NULL, NAME_COLUMNS, text_of(job, "name"));
    text_put(canvas, NULL, 1, " ");
    text_put(canvas,
             strcmp(state, "failed") == 0    ? RED
             : strcmp(state, "running") == 0 ? GREEN
                                             : YELLOW,
             10, state);
    snprintf(cell, sizeof(cell), "%5.0f ranks %9.1f/s ", number_of(job, "world_size"),
             rate_of(screen, before, job, "collectives"));
    text_put(canvas, NULL, 0, cell);
    bytes_text(rate_of(screen, before, job, "bytes"), rate, sizeof(rate));
    snprintf(cell, sizeof(cell), "%10s/s  ", rate);
    text_put(canvas, NULL, 0, cell);
    if (strcmp(state, "failed") == 0) {
        text_put(canvas, RED, 0, text_of(job, "error"));
    } else if (late) {
        shoalctl_format_ranks(json_object_get(late, "ranks"), ranks, sizeof(ranks));
        text_print(canvas, RED, "waits for rank %s since %.1f s", ranks,
                   number_of(late, "since_ms") / 1000);
    } else if (json_is_string(json_object_get(job, "waits_for"))) {
        text_print(canvas, YELLOW, "waits to open: %s", text_of(job, "waits_for"));
    } else if (json_array_size(json_object_get(job, "ranks_missing"))) {
        shoalctl_format_ranks(json_object_get(job, "ranks_missing"), ranks, sizeof(ranks));
        text_print(canvas, YELLOW, "missing: %s", ranks);
    }
}

static void link_draw(const struct screen *screen, struct canvas *canvas, const struct link *link)
{
    char in[32], out[32], cell[64];
    if (!line_begin(canvas))
        return;
    text_put(canvas, NULL, NAME_COLUMNS, text_of(link->peer, "name"));
    text_put(canvas, NULL, 1, " ");
    if (!link->up) {
        text_put(canvas, RED, 10, text_of(link->peer, "state"));
        text_put(canvas, RED, 0, text_of(link->peer, "last_error"));
        return;
    }
    bytes_text(link->in_Bps, in, sizeof(in));
    bytes_text(link->out_Bps, out, sizeof(out));
    snprintf(cell, sizeof(cell), "in %10s/s ", in);
    text_put(canvas, NULL, 0, cell);
    bar_put(canvas, link->in_Bps, screen->fastest_Bps, bar_width(canvas), GREEN);
    snprintf(cell, sizeof(cell), "out %10s/s ", out);
    text_put(canvas, NULL, 0, cell);
    bar_put(canvas, link->out_Bps, screen->fastest_Bps, bar_width(canvas), GREEN);
}

static void warnings_draw(struct canvas *canvas, const json_t *warnings)
{
    size_t count = json_array_size(warnings);
    if (count == 0 || lines_left(canvas) < 2)
        return;
    title_put(canvas, "WARNINGS");
    size_t shown = lines_left(canvas) < count ? lines_left(canvas) : count;
    for (size_t i = count - shown; i < count && line_begin(canvas); i++) {
        const json_t *warning = json_array_get(warnings, i);
        bool error = strcmp(text_of(warning, "level"), "error") == 0;
        text_put(canvas, NULL, 0, text_of(warning, "time"));
        text_put(canvas, NULL, 1, " ");
        text_put(canvas, error ? RED : YELLOW, 0, text_of(warning, "text"));
    }
}

/* Return how many of a section's lines can be shown, beside the line that counts the others. */
static size_t lines_fit(size_t wanted, size_t room)
{
    if (wanted <= room)
        return wanted;
    return room > 0 ? room - 1 : 0;
}

void screen_draw(const struct screen *screen, const struct screen_size *size, FILE *out)
{
    struct canvas canvas = {.out = out, .size = *size};
    const json_t *warnings = json_object_get(screen->status, "warnings");
    size_t jobs = json_array_size(json_object_get(screen->status, "jobs")), links;
    struct link *list = links_of(screen, &links);
    size_t kept = json_array_size(warnings);
    kept = kept > WARNINGS_LEAST ? WARNINGS_LEAST + 2 : kept ? kept + 2 : 0;
    size_t titles = HEAD_LINES + (links ? 4 : 2);
    size_t room = size->rows > titles + kept ? size->rows - titles - kept : 2;
    size_t for_jobs = jobs + links > room && jobs > room / 2 && links ? room / 2 : room;

    head_draw(&canvas, screen->status);
    title_put(&canvas, jobs ? "JOBS" : "NO JOBS");
    size_t shown = lines_fit(jobs, for_jobs);
    for (size_t i = 0; i < shown; i++)
        job_draw(screen, &canvas, i);
    more_put(&canvas, jobs - shown);
    if (links) {
        qsort(list, links, sizeof(*list), link_compare);
        title_put(&canvas, "LINKS");
        size_t taken = shown + (shown < jobs);
        shown = lines_fit(links, room > taken ? room - taken : 1);
        for (size_t i = 0; i < shown; i++)
            link_draw(screen, &canvas, &list[i]);
        more_put(&canvas, links - shown);
    }
    warnings_draw(&canvas, warnings);
    if (lines_left(&canvas))
        fputs("\r\n\033[J", out);
    free(list);
}
