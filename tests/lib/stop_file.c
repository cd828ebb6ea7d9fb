#include "tests/lib/stop_file.h"

#include <stdio.h>

#include "tests/lib/suite.h"

void stop_file_create(struct stop_file *file)
{
    file->directory = suite_make_directory();
    snprintf(file->path, sizeof(file->path), "%s/stop", file->directory);
}

void stop_file_free(struct stop_file *file)
{
    suite_remove_directory(file->directory);
}

void stop_file_raise(const struct stop_file *file)
{
    FILE *stream = fopen(file->path, "w");
    ck_assert_ptr_nonnull(stream);
    fclose(stream);
}

void stop_file_withdraw(const struct stop_file *file)
{
    ck_assert_int_eq(remove(file->path), 0);
}
