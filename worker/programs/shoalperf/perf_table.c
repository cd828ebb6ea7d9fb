#include "worker/programs/shoalperf/perf_table.h"

#include <inttypes.h>

#include "common/format/route.h"
#include "worker/programs/shoalperf/perf_options.h"

uint64_t perf_row_bytes(const struct perf_row *row)
{
    uint64_t parts = perf_size_parts(row->collective, row->ranks);
    return parts * row->count * dtype_bytes(row->dtype);
}

double perf_algbw_GBps(const struct perf_row *row)
{
    return row->time_us > 0 ? (double)perf_row_bytes(row) / row->time_us / 1e3 : 0;
}

double perf_busbw_GBps(const struct perf_row *row)
{
    double factor = 1;
    if (row->collective == COLLECTIVE_ALL_REDUCE && row->ranks)
        factor = 2.0 * (row->ranks - 1) / row->ranks;
    if (route_in_blocks(row->collective) && row->collective != COLLECTIVE_SEND && row->ranks)
        factor = 1.0 * (row->ranks - 1) / row->ranks;
    return factor * perf_algbw_GBps(row);
}

void perf_table_head(FILE *out, const char *collective, uint32_t ranks, uint32_t nodes,
                     const char *buffers)
{
    fprintf(out, "# shoalperf %s: %u ranks on %u nodes, %s\n#\n", collective, ranks, nodes,
            buffers);
    fprintf(out, "#%12s %12s %9s %7s %6s %10s %8s %8s %8s\n", "size", "count", "type", "redop",
            "root", "time", "algbw", "busbw", "#wrong");
    fprintf(out, "#%12s %12s %9s %7s %6s %10s %8s %8s\n", "(B)", "(elements)", "", "", "", "(us)",
            "(GB/s)", "(GB/s)");
    fflush(out);
}

void perf_table_row(FILE *out, const struct perf_row *row)
{
    bool barrier = row->collective == COLLECTIVE_BARRIER;
    char wrong[24] = "N/A";
    if (row->checked)
        snprintf(wrong, sizeof(wrong), "%" PRIu64, row->wrong);
    fprintf(out, " %12" PRIu64 " %12" PRIu64 " %9s %7s %6d %10.2f %8.2f %8.2f %8s\n",
            perf_row_bytes(row), row->count, barrier ? "none" : dtype_name(row->dtype),
            collective_has_op(row->collective) ? reduce_op_name(row->op) : "none", row->root,
            row->time_us, perf_algbw_GBps(row), perf_busbw_GBps(row), wrong);
    fflush(out);
}

void perf_table_foot(FILE *out, uint64_t wrong, double busbw_sum, uint64_t rows)
{
    fprintf(out, "# Out of bounds values : %" PRIu64 " %s\n", wrong, wrong ? "FAILED" : "OK");
    fprintf(out, "# Avg bus bandwidth    : %.4g\n#\n", rows ? busbw_sum / (double)rows : 0);
    fflush(out);
}

/* The names are ours, so nothing has to be escaped. "wrong" is null when nothing was checked. */
void perf_json_row(FILE *out, const struct perf_row *row)
{
    char wrong[24] = "null";
    if (row->checked)
        snprintf(wrong, sizeof(wrong), "%" PRIu64, row->wrong);
    fprintf(out,
            "{\"collective\":\"%s\",\"bytes\":%" PRIu64 ",\"dtype\":\"%s\",\"op\":\"%s\","
            "\"ranks\":%u,\"nodes\":%u,\"time_us\":%.3f,\"algbw_GBps\":%.6f,"
            "\"busbw_GBps\":%.6f,\"wrong\":%s}\n",
            perf_collective_name(row->collective), perf_row_bytes(row),
            row->collective == COLLECTIVE_BARRIER ? "none" : dtype_name(row->dtype),
            collective_has_op(row->collective) ? reduce_op_name(row->op) : "none", row->ranks,
            row->nodes, row->time_us, perf_algbw_GBps(row), perf_busbw_GBps(row), wrong);
    fflush(out);
}
