#include "server/shoalctl/shoalctl_print.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/shown.h"
#include "common/text/size_text.h"

#define CELL_BYTES 320 /* an address of a page fits */
#define MBITS_PER_GB 8000.0
#define TOPOLOGY_BYTES 1024
#define COLUMNS_MAX 12

/* --- cells ---------------------------------------------------------------------------------- */

void shoalctl_format_duration(uint64_t seconds, char *text, size_t room)
{
    uint64_t minutes = seconds / 60, hours = minutes / 60;
    if (seconds < 120)
        snprintf(text, room, "%" PRIu64 " s", seconds);
    else if (minutes < 60)
        snprintf(text, room, "%" PRIu64 " min", minutes);
    else if (hours < 24)
        snprintf(text, room, "%" PRIu64 " h %" PRIu64 " min", hours, minutes % 60);
    else
        snprintf(text, room, "%" PRIu64 " d %" PRIu64 " h", hours / 24, hours % 24);
}

void shoalctl_format_ranks(const json_t *ranks, char *text, size_t room)
{
    if (json_is_integer(ranks)) {
        snprintf(text, room, "%" JSON_INTEGER_FORMAT, json_integer_value(ranks));
        return;
    }
    size_t used = 0, count = json_array_size(ranks);
    snprintf(text, room, "-");
    for (size_t i = 0; i < count && used < room;) {
        json_int_t first = json_integer_value(json_array_get(ranks, i)), last = first;
        for (i++; i < count && json_integer_value(json_array_get(ranks, i)) == last + 1; i++)
            last++;
        const char *comma = used ? "," : "";
        int length =
            first == last
                ? snprintf(text + used, room - used, "%s%" JSON_INTEGER_FORMAT, comma, first)
                : snprintf(text + used, room - used,
                           "%s%" JSON_INTEGER_FORMAT "-%" JSON_INTEGER_FORMAT, comma, first, last);
        used += (size_t)length;
    }
    if (used >= room && room > 3)
        memcpy(text + room - 4, "...", 4);
}

static void print_cell_text(const json_t *object, const char *key, char cell[CELL_BYTES])
{
    const json_t *value = json_object_get(object, key);
    if (json_is_string(value) && json_string_length(value))
        shown_copy(cell, CELL_BYTES, json_string_value(value));
    else if (json_is_integer(value))
        snprintf(cell, CELL_BYTES, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(cell, CELL_BYTES, "%.2f", json_real_value(value));
    else if (json_is_boolean(value))
        snprintf(cell, CELL_BYTES, "%s", json_is_true(value) ? "yes" : "no");
    else
        snprintf(cell, CELL_BYTES, "-");
}

static void print_cell_bytes(const json_t *object, const char *key, char cell[CELL_BYTES])
{
    const json_t *value = json_object_get(object, key);
    if (json_is_integer(value) && json_integer_value(value) >= 0)
        size_text_print((uint64_t)json_integer_value(value), cell, CELL_BYTES);
    else
        snprintf(cell, CELL_BYTES, "-");
}

static void print_cell_ranks(const json_t *object, const char *key, char cell[CELL_BYTES])
{
    shoalctl_format_ranks(json_object_get(object, key), cell, 64);
}

/* "4711 (rank 0)" for each, as in "0:4711 1:4712". */
static void print_cell_local_ranks(const json_t *job, char cell[CELL_BYTES])
{
    const json_t *list = json_object_get(job, "local_ranks"), *entry;
    size_t i, used = 0;
    snprintf(cell, CELL_BYTES, "-");
    json_array_foreach((json_t *)list, i, entry)
    {
        if (used >= 64)
            break;
        used += (size_t)snprintf(
            cell + used, CELL_BYTES - used, "%s%" JSON_INTEGER_FORMAT ":%" JSON_INTEGER_FORMAT,
            used ? " " : "", json_integer_value(json_object_get(entry, "rank")),
            json_integer_value(json_object_get(entry, "pid")));
    }
    if (i < json_array_size(list))
        snprintf(cell + used, CELL_BYTES - used, " ...");
}

/* --- tables --------------------------------------------------------------------------------- */

struct column {
    const char *title;
    const char *key;
    void (*format)(const json_t *object, const char *key, char cell[CELL_BYTES]);
    bool right; /* aligned */
};

static void print_row_format(const json_t *object, const struct column *columns, size_t count,
                             char cells[COLUMNS_MAX][CELL_BYTES])
{
    for (size_t i = 0; i < count; i++)
        if (object)
            columns[i].format(object, columns[i].key, cells[i]);
        else
            snprintf(cells[i], CELL_BYTES, "%s", columns[i].title);
}

static void print_table(FILE *out, const json_t *list, const struct column *columns, size_t count)
{
    char cells[COLUMNS_MAX][CELL_BYTES];
    int widths[COLUMNS_MAX] = {0};
    size_t rows = json_array_size(list);
    /* Row 0 is the titles; the first pass measures, the second prints. */
    for (int pass = 0; pass < 2; pass++)
        for (size_t row = 0; row <= rows; row++) {
            print_row_format(row ? json_array_get(list, row - 1) : NULL, columns, count, cells);
            for (size_t i = 0; i < count; i++) {
                int width = (int)strlen(cells[i]);
                bool last = i + 1 == count;
                if (pass == 0)
                    widths[i] = width > widths[i] ? width : widths[i];
                else if (last && !columns[i].right)
                    fprintf(out, "%s\n", cells[i]);
                else
                    fprintf(out, "%*s%s", columns[i].right ? widths[i] : -widths[i], cells[i],
                            last ? "\n" : "  ");
            }
        }
}

static void print_late(FILE *out, const json_t *jobs)
{
    size_t i, k;
    const json_t *job, *late;
    json_array_foreach((json_t *)jobs, i, job)
    {
        json_array_foreach(json_object_get(job, "late"), k, late)
        {
            char name[CELL_BYTES], group[CELL_BYTES], sequence[CELL_BYTES], ranks[CELL_BYTES];
            print_cell_text(job, "name", name);
            print_cell_text(late, "group", group);
            print_cell_text(late, "sequence", sequence);
            print_cell_ranks(late, "ranks", ranks);
            double since_ms = json_number_value(json_object_get(late, "since_ms"));
            fprintf(out, "job %s waits for rank %s since %.1f s (group %s, collective %s)\n", name,
                    ranks, since_ms / 1000, group, sequence);
        }
    }
}

static void print_waiting(FILE *out, const json_t *jobs)
{
    size_t i;
    const json_t *job;
    json_array_foreach((json_t *)jobs, i, job)
    {
        const char *cause = json_string_value(json_object_get(job, "waits_for"));
        char name[CELL_BYTES], text[ERROR_TEXT_BYTES];
        if (!cause)
            continue;
        print_cell_text(job, "name", name);
        shown_copy(text, sizeof(text), cause);
        fprintf(out, "job %s has all its ranks and waits to open: %s\n", name, text);
    }
}

/* "b, c"; "" for none. */
static void print_names(const json_t *names, char cell[CELL_BYTES])
{
    size_t i, used = 0;
    const json_t *name;
    cell[0] = '\0';
    json_array_foreach((json_t *)names, i, name)
    {
        char text[CELL_BYTES];
        shown_copy(text, sizeof(text), json_is_string(name) ? json_string_value(name) : "-");
        if (used + strlen(text) + 8 > CELL_BYTES) {
            snprintf(cell + used, CELL_BYTES - used, ", ...");
            return;
        }
        used += (size_t)snprintf(cell + used, CELL_BYTES - used, "%s%s", used ? ", " : "", text);
    }
}

/* Print, for a job that has failed and may go on, who is gone, and who is waited for. */
static void print_lost(FILE *out, const json_t *job)
{
    const json_t *lost = json_object_get(job, "lost");
    if (!json_is_object(lost))
        return;
    char name[CELL_BYTES], ranks[CELL_BYTES], nodes[CELL_BYTES], awaited[CELL_BYTES];
    print_cell_text(job, "name", name);
    print_cell_ranks(lost, "ranks", ranks);
    print_names(json_object_get(lost, "nodes"), nodes);
    print_cell_ranks(lost, "awaited", awaited);
    fprintf(out, "job %s has failed %.1f s ago and may go on; gone: rank %s%s%s", name,
            json_number_value(json_object_get(lost, "since_ms")) / 1000, ranks,
            nodes[0] ? ", node " : "", nodes);
    if (json_array_size(json_object_get(lost, "away")) > 0) {
        char away[CELL_BYTES];
        print_cell_ranks(lost, "away", away);
        fprintf(out, "; until its daemon is started again: rank %s", away);
    }
    if (json_array_size(json_object_get(lost, "awaited")) > 0)
        fprintf(out, "; waits for rank %s", awaited);
    if (json_is_integer(json_object_get(lost, "least_ranks")))
        fprintf(out, "; waits for newcomers until it has %lld ranks",
                (long long)json_integer_value(json_object_get(lost, "least_ranks")));
    fputc('\n', out);
}

/* Print the losses after which the job has gone on. */
static void print_recovered(FILE *out, const json_t *job)
{
    static const char *const kinds[] = {"connection", "server", "daemon", "generation"};
    bool first = true;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const json_t *it = json_object_get(json_object_get(job, "recovered"), kinds[i]);
        json_int_t times = json_integer_value(json_object_get(it, "times"));
        char name[CELL_BYTES];
        if (times <= 0)
            continue;
        print_cell_text(job, "name", name);
        if (first)
            fprintf(out, "job %s has recovered:", name);
        fprintf(out, "%s %s %" JSON_INTEGER_FORMAT " time%s (last %.3f s, together %.3f s)",
                first ? "" : ",", kinds[i], times, times == 1 ? "" : "s",
                json_number_value(json_object_get(it, "last_ms")) / 1000,
                json_number_value(json_object_get(it, "total_ms")) / 1000);
        first = false;
    }
    if (!first)
        fputc('\n', out);
}

static void print_ended(FILE *out, const json_t *status)
{
    const json_t *ended = json_object_get(status, "ended"), *job;
    size_t i;
    json_array_foreach((json_t *)ended, i, job)
    {
        char name[CELL_BYTES], how[CELL_BYTES], error[CELL_BYTES], ran[64], ago[64];
        double ago_s = json_number_value(json_object_get(job, "ended_ms")) / 1000;
        double ran_s = json_number_value(json_object_get(job, "ran_s"));
        if (ago_s < 0 || ran_s < 0)
            continue;
        print_cell_text(job, "name", name);
        print_cell_text(job, "state", how);
        print_cell_text(job, "error", error);
        shoalctl_format_duration((uint64_t)ran_s, ran, sizeof(ran));
        shoalctl_format_duration((uint64_t)ago_s, ago, sizeof(ago));
        bool failed = json_is_string(json_object_get(job, "error"));
        fprintf(out, "job %s ended %s ago: %s after %s%s%s\n", name, ago, how, ran,
                failed ? ": " : "", failed ? error : "");
    }
}

void shoalctl_print_jobs(FILE *out, const json_t *status)
{
    static const struct column columns[] = {
        {"JOB", "name", print_cell_text, false},
        {"STATE", "state", print_cell_text, false},
        {"GEN", "generation", print_cell_text, true},
        {"WORLD", "world_size", print_cell_text, true},
        {"PRESENT", "ranks_present", print_cell_ranks, false},
        {"MISSING", "ranks_missing", print_cell_ranks, false},
        {"GROUPS", "groups", print_cell_text, true},
        {"COLLECTIVES", "collectives", print_cell_text, true},
        {"BYTES", "bytes", print_cell_bytes, true},
        {"SLOTS", "slots", print_cell_text, true},
        {"SLOWEST", "slowest_rank", print_cell_text, true},
        {"UID", "uid", print_cell_text, true},
    };
    const json_t *jobs = json_object_get(status, "jobs"), *job;
    if (json_array_size(jobs) == 0) {
        fprintf(out, "no jobs\n");
        print_ended(out, status);
        return;
    }
    print_table(out, jobs, columns, sizeof(columns) / sizeof(columns[0]));
    size_t i;
    json_array_foreach((json_t *)jobs, i, job)
    {
        char name[CELL_BYTES], local[CELL_BYTES];
        if (json_array_size(json_object_get(job, "local_ranks")) == 0)
            continue;
        print_cell_text(job, "name", name);
        print_cell_local_ranks(job, local);
        fprintf(out, "job %s has here, rank:pid: %s\n", name, local);
    }
    json_array_foreach((json_t *)jobs, i, job)
    {
        print_lost(out, job);
        print_recovered(out, job);
    }
    print_late(out, jobs);
    print_waiting(out, jobs);
    print_ended(out, status);
}

/* Print what is charged to users whose memory or descriptors the daemon holds. */
static void print_users(FILE *out, const json_t *status)
{
    static const struct column columns[] = {
        {"USER", "uid", print_cell_text, true},
        {"MEMORY", "memory_bytes", print_cell_bytes, true},
        {"LEFT", "left_bytes", print_cell_bytes, true},
        {"OUTPUT", "output_bytes", print_cell_bytes, true},
        {"DESCRIPTORS", "descriptors", print_cell_text, true},
    };
    const json_t *users = json_object_get(status, "users");
    if (json_array_size(users) == 0)
        return;
    fputc('\n', out);
    print_table(out, users, columns, sizeof(columns) / sizeof(columns[0]));
}

/* --- the whole ------------------------------------------------------------------------------ */

static void print_head(FILE *out, const json_t *status)
{
    char software[CELL_BYTES], node[CELL_BYTES], pid[CELL_BYTES], state[CELL_BYTES], up[64] = "-";
    print_cell_text(status, "software", software);
    print_cell_text(status, "node", node);
    print_cell_text(status, "pid", pid);
    print_cell_text(status, "state", state);
    const json_t *uptime = json_object_get(status, "uptime_s");
    if (json_is_number(uptime) && json_number_value(uptime) >= 0)
        shoalctl_format_duration((uint64_t)json_number_value(uptime), up, sizeof(up));
    fprintf(out, "%s, node %s, pid %s, up %s, %s\n", software, node, pid, up, state);
    const char *page = json_string_value(json_object_get(status, "page"));
    char address_of_page[CELL_BYTES];
    shown_copy(address_of_page, sizeof(address_of_page), page ? page : "");
    if (page)
        fprintf(out, "page         %s\n", address_of_page);
    const json_t *provider = json_object_get(status, "provider");
    char name[CELL_BYTES], endpoint[CELL_BYTES], version[CELL_BYTES], address[CELL_BYTES];
    print_cell_text(provider, "name", name);
    print_cell_text(provider, "endpoint", endpoint);
    print_cell_text(provider, "version", version);
    print_cell_text(provider, "address", address);
    fprintf(out, "provider     %s, %s, %s, address %s\n", name, endpoint, version, address);
    char set[CELL_BYTES];
    print_cell_text(status, "instruction_set", set);
    const char *topology = json_string_value(json_object_get(status, "topology"));
    char machine[TOPOLOGY_BYTES]; /* with GPUs it is longer than others */
    shown_copy(machine, sizeof(machine), topology ? topology : "-");
    fprintf(out, "reduction    %s, %s\n", set, machine);
}

static void print_figures(FILE *out, const json_t *status)
{
    const json_t *traffic = json_object_get(status, "traffic");
    char in[CELL_BYTES], out_bytes[CELL_BYTES], reduced[CELL_BYTES], collectives[CELL_BYTES],
        met[CELL_BYTES], dropped[CELL_BYTES], in_rate[CELL_BYTES], out_rate[CELL_BYTES];
    print_cell_bytes(traffic, "bytes_in", in);
    print_cell_bytes(traffic, "bytes_out", out_bytes);
    print_cell_bytes(traffic, "bytes_reduced", reduced);
    print_cell_text(traffic, "in_GBps", in_rate);
    print_cell_text(traffic, "out_GBps", out_rate);
    print_cell_text(traffic, "collectives", collectives);
    print_cell_text(traffic, "met_collectives", met);
    print_cell_text(traffic, "dropped_messages", dropped);
    fprintf(out, "traffic      in %s (%s GB/s), out %s (%s GB/s), ", in, in_rate, out_bytes,
            out_rate);
    double link_mbits = json_number_value(json_object_get(traffic, "link_mbits"));
    if (link_mbits > 0)
        fprintf(out, "of %.2f GB/s each way, ", link_mbits / MBITS_PER_GB);
    fprintf(out, "%s messages dropped\n", dropped);
    fprintf(out, "work         %s collectives, %s of them in memory that ranks share, %s reduced\n",
            collectives, met, reduced);
    const json_t *memory = json_object_get(status, "memory");
    char used[CELL_BYTES], allocated[CELL_BYTES], reserved[CELL_BYTES], limit[CELL_BYTES];
    print_cell_bytes(memory, "used_bytes", used);
    print_cell_bytes(memory, "allocated_bytes", allocated);
    print_cell_bytes(memory, "reserved_bytes", reserved);
    print_cell_bytes(memory, "limit_bytes", limit);
    fprintf(out, "memory       %s used, %s allocated, %s reserved, limit %s\n", used, allocated,
            reserved, limit);
    const json_t *replay = json_object_get(status, "replay");
    if (json_integer_value(json_object_get(replay, "limit_bytes")) > 0) {
        char results[CELL_BYTES];
        print_cell_text(replay, "results", results);
        print_cell_bytes(replay, "used_bytes", used);
        print_cell_bytes(replay, "limit_bytes", limit);
        fprintf(out, "replay       %s results kept, %s, limit %s\n", results, used, limit);
    }
    const json_t *workers = json_object_get(status, "workers");
    char slots[CELL_BYTES], count[CELL_BYTES], most[CELL_BYTES];
    print_cell_text(status, "slots", slots);
    print_cell_text(workers, "count", count);
    print_cell_text(workers, "limit", most);
    fprintf(out, "slots        %s in progress\nworkers      %s, limit %s\n", slots, count, most);
}

void shoalctl_print_status(FILE *out, const json_t *status)
{
    static const struct column columns[] = {
        {"PEER", "name", print_cell_text, false},
        {"ADDRESS", "address", print_cell_text, false},
        {"WEIGHT", "weight", print_cell_text, true},
        {"STATE", "state", print_cell_text, false},
        {"FABRIC", "fabric", print_cell_text, false},
        {"SEALED", "sealed", print_cell_text, false},
        {"IN", "bytes_in", print_cell_bytes, true},
        {"OUT", "bytes_out", print_cell_bytes, true},
        {"SILENT ms", "silent_ms", print_cell_text, true},
        {"LAST ERROR", "last_error", print_cell_text, false},
    };
    print_head(out, status);
    print_figures(out, status);
    const json_t *peers = json_object_get(status, "peers");
    fputc('\n', out);
    if (json_array_size(peers))
        print_table(out, peers, columns, sizeof(columns) / sizeof(columns[0]));
    else
        fprintf(out, "no peers\n");
    fputc('\n', out);
    shoalctl_print_jobs(out, status);
    print_users(out, status);
}
