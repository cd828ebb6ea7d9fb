#include "worker/examples/digits/dataset.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/shoal.h"

/* A position in the text, for messages. */
struct cursor {
    const char *name;
    const char *at;
    const char *end; /* of the text */
    size_t line;
};

static int dataset_reserve(struct dataset *dataset, size_t row_count)
{
    dataset->pixels = malloc((row_count * DATASET_PIXELS + 1) * sizeof *dataset->pixels);
    dataset->labels = malloc(row_count + 1);
    if (dataset->pixels && dataset->labels)
        return 0;
    dataset_free(dataset);
    return SHOAL_EMEMORY;
}

void dataset_free(struct dataset *dataset)
{
    free(dataset->pixels);
    free(dataset->labels);
    *dataset = (struct dataset){0};
}

static int field_refuse(const struct cursor *cursor, size_t column, const char *field,
                        size_t length, char *error)
{
    char shown[24];
    size_t count = length < sizeof shown - 1 ? length : sizeof shown - 1;
    for (size_t i = 0; i < count; i++)
        shown[i] = (char)(field[i] >= ' ' && field[i] <= '~' ? field[i] : '?');
    shown[count] = '\0';
    int pixel = column < DATASET_PIXELS;
    snprintf(error, DATASET_ERROR_BYTES, "%s: line %zu, column %zu: '%s' is not a %s from 0 to %d",
             cursor->name, cursor->line, column + 1, shown, pixel ? "pixel" : "label",
             pixel ? DATASET_PIXEL_MAX : DATASET_CLASSES - 1);
    return SHOAL_EINVALID;
}

/* One value: one or two decimal digits, no more. */
static int field_parse(const struct cursor *cursor, size_t column, const char *field, size_t length,
                       unsigned *value, char *error)
{
    unsigned maximum = column < DATASET_PIXELS ? DATASET_PIXEL_MAX : DATASET_CLASSES - 1;
    unsigned number = 0;
    if (length < 1 || length > 2)
        return field_refuse(cursor, column, field, length, error);
    for (size_t i = 0; i < length; i++) {
        if (field[i] < '0' || field[i] > '9')
            return field_refuse(cursor, column, field, length, error);
        number = number * 10 + (unsigned)(field[i] - '0');
    }
    if (number > maximum)
        return field_refuse(cursor, column, field, length, error);
    *value = number;
    return 0;
}

/* One line, without its end, into row `row`. */
static int line_parse(const struct cursor *cursor, const char *line, const char *line_end,
                      struct dataset *dataset, size_t row, char *error)
{
    size_t column = 0;
    for (const char *field = line;; column++) {
        const char *comma = memchr(field, ',', (size_t)(line_end - field));
        const char *field_end = comma ? comma : line_end;
        unsigned value = 0;
        if (column == DATASET_COLUMNS) {
            snprintf(error, DATASET_ERROR_BYTES,
                     "%s: line %zu, column %zu: one column too many; a row has %d", cursor->name,
                     cursor->line, column + 1, DATASET_COLUMNS);
            return SHOAL_EINVALID;
        }
        int result = field_parse(cursor, column, field, (size_t)(field_end - field), &value, error);
        if (result != 0)
            return result;
        if (column < DATASET_PIXELS)
            dataset->pixels[row * DATASET_PIXELS + column] = (float)value / DATASET_PIXEL_MAX;
        else
            dataset->labels[row] = (unsigned char)value;
        if (!comma)
            break;
        field = comma + 1;
    }
    if (column + 1 < DATASET_COLUMNS) {
        snprintf(error, DATASET_ERROR_BYTES,
                 "%s: line %zu, column %zu: the line ends; a row has %d columns", cursor->name,
                 cursor->line, column + 2, DATASET_COLUMNS);
        return SHOAL_EINVALID;
    }
    return 0;
}

int dataset_parse(const char *text, size_t length, const char *name, struct dataset *dataset,
                  char *error)
{
    struct cursor cursor = {name, text, text + length, 1};
    struct dataset read = {0};
    size_t line_count = 1;
    for (size_t i = 0; i < length; i++)
        line_count += text[i] == '\n';
    int result = dataset_reserve(&read, line_count);
    if (result != 0) {
        snprintf(error, DATASET_ERROR_BYTES, "%s: out of memory for %zu lines", name, line_count);
        return result;
    }
    for (; cursor.at < cursor.end; cursor.line++) {
        const char *newline = memchr(cursor.at, '\n', (size_t)(cursor.end - cursor.at));
        const char *line_end = newline ? newline : cursor.end;
        const char *next = newline ? newline + 1 : cursor.end;
        if (newline && line_end > cursor.at && line_end[-1] == '\r')
            line_end--;
        result = line_parse(&cursor, cursor.at, line_end, &read, read.row_count, error);
        if (result != 0) {
            dataset_free(&read);
            return result;
        }
        read.row_count++;
        cursor.at = next;
    }
    if (read.row_count == 0) {
        snprintf(error, DATASET_ERROR_BYTES, "%s: line 1, column 1: no rows", name);
        dataset_free(&read);
        return SHOAL_EINVALID;
    }
    *dataset = read;
    return 0;
}

static int dataset_file_read(FILE *file, const char *path, char **text, size_t *length, char *error)
{
    size_t used = 0, room = 1 << 20;
    char *memory = NULL;
    for (;;) {
        char *larger = realloc(memory, room);
        if (!larger) {
            free(memory);
            snprintf(error, DATASET_ERROR_BYTES, "%s: out of memory", path);
            return SHOAL_EMEMORY;
        }
        memory = larger;
        used += fread(memory + used, 1, room - used, file);
        if (used < room)
            break;
        if (room > DATASET_BYTES_MAX) {
            free(memory);
            snprintf(error, DATASET_ERROR_BYTES, "%s: longer than %d bytes", path,
                     DATASET_BYTES_MAX);
            return SHOAL_EINVALID;
        }
        room *= 2;
    }
    if (ferror(file)) {
        snprintf(error, DATASET_ERROR_BYTES, "%s: cannot be read: %s", path, strerror(errno));
        free(memory);
        return SHOAL_ESYSTEM;
    }
    *text = memory;
    *length = used;
    return 0;
}

int dataset_load(const char *path, struct dataset *dataset, char *error)
{
    FILE *file = fopen(path, "rbe");
    if (!file) {
        snprintf(error, DATASET_ERROR_BYTES, "%s: cannot be opened: %s", path, strerror(errno));
        return SHOAL_ESYSTEM;
    }
    char *text = NULL;
    size_t length = 0;
    int result = dataset_file_read(file, path, &text, &length, error);
    fclose(file);
    if (result != 0)
        return result;
    result = dataset_parse(text, length, path, dataset, error);
    free(text);
    return result;
}

int dataset_find(const char *executable, char *path, size_t path_bytes)
{
    static const char *const paths[] = {"worker/examples/digits/digits.csv",
                                        "share/shoal/digits.csv"};
    const char *slash = strrchr(executable, '/');
    size_t length = slash ? (size_t)(slash - executable) : 0;
    while (length > 0) {
        for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
            int written = snprintf(path, path_bytes, "%.*s/%s", (int)length, executable, paths[i]);
            if (written > 0 && (size_t)written < path_bytes && access(path, R_OK) == 0)
                return 0;
        }
        do
            length--;
        while (length > 0 && executable[length] != '/');
    }
    return SHOAL_EINVALID;
}

int dataset_split(const struct dataset *dataset, struct dataset *training, struct dataset *test)
{
    size_t test_count = dataset->row_count / DATASET_HOLD_OUT_EVERY;
    struct dataset parts[2] = {{0}, {0}};
    if (test_count == 0)
        return SHOAL_EINVALID;
    if (dataset_reserve(&parts[0], dataset->row_count - test_count) != 0 ||
        dataset_reserve(&parts[1], test_count) != 0) {
        dataset_free(&parts[0]);
        return SHOAL_EMEMORY;
    }
    for (size_t row = 0; row < dataset->row_count; row++) {
        struct dataset *part = &parts[row % DATASET_HOLD_OUT_EVERY == DATASET_HOLD_OUT_EVERY - 1];
        memcpy(part->pixels + part->row_count * DATASET_PIXELS,
               dataset->pixels + row * DATASET_PIXELS, DATASET_PIXELS * sizeof(float));
        part->labels[part->row_count++] = dataset->labels[row];
    }
    *training = parts[0];
    *test = parts[1];
    return 0;
}

void dataset_gather(const struct dataset *dataset, const uint32_t *order, size_t count,
                    float *pixels, unsigned char *labels)
{
    for (size_t i = 0; i < count; i++) {
        memcpy(pixels + i * DATASET_PIXELS, dataset->pixels + order[i] * (size_t)DATASET_PIXELS,
               DATASET_PIXELS * sizeof(float));
        labels[i] = dataset->labels[order[i]];
    }
}
