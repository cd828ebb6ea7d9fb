#include "tests/lib/bench_program.h"

#include <string.h>

#include "tests/lib/process.h"
#include "tests/lib/suite.h"

#define PATIENCE_MS 120000

json_t *bench_program_run(const char *const argv[])
{
    struct process *process = process_run(argv);
    int code = process_wait(process, PATIENCE_MS);
    ck_assert_msg(code == 0, "exit code %d\n%.500s\n%.2000s", code, process_output(process),
                  process_errors(process));
    json_t *row = json_loads(process_output(process), 0, NULL);
    ck_assert_msg(row != NULL, "no JSON: %.300s", process_output(process));
    process_free(process);
    return row;
}

double bench_program_number(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    ck_assert_msg(json_is_number(value), "%s", key);
    return json_number_value(value);
}

void bench_program_refuses(const char *const argv[], const char *expected)
{
    struct process *process = process_run(argv);
    ck_assert_int_eq(process_wait(process, PATIENCE_MS), 2);
    ck_assert_msg(strstr(process_errors(process), expected) != NULL, "\"%s\" lacks \"%s\"",
                  process_errors(process), expected);
    process_free(process);
}
