#include "tests/lib/worker/perf_run.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

int perf_rows_measured(const char *shape, const char *words)
{
    char line[1024];
    snprintf(line, sizeof(line), "%sshoalrun --timeout 240 %s -- %sshoalperf %s --json",
             CLUSTER_BIN, shape, CLUSTER_BIN, words);
    struct process *process = process_run_words(line);
    int code = process_wait(process, 300000);
    ck_assert_msg(code == 0, "%s, %s: exit code %d\n%.500s\n%.2000s", shape, words, code,
                  process_output(process), process_errors(process));
    int rows = 0;
    const char *text = process_output(process);
    for (const char *end; (end = strchr(text, '\n')); text = end + 1, rows++) {
        json_t *row = json_loadb(text, (size_t)(end - text), 0, NULL);
        ck_assert_msg(row != NULL, "no JSON: %.200s", text);
        ck_assert_int_eq(json_integer_value(json_object_get(row, "wrong")), 0);
        ck_assert(json_is_integer(json_object_get(row, "wrong")));
        ck_assert(json_real_value(json_object_get(row, "time_us")) > 0);
        json_decref(row);
    }
    process_free(process);
    return rows;
}
