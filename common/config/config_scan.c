#include <string.h>

#include "common/config/config_report.h"

/* jansson can refuse a doubled key, but stops there, without the key's pointer in the tree. Text
 * that it has accepted is easy to walk again: nothing here checks the grammar. */
struct scan {
    struct config_report *report;
    const char *text;
    const char *at;
    const char *end;
    int line;
    int column; /* in characters, from 1 */
    struct config_pointer pointer;
    void (*replaced)(struct config_report *report, const char *pointer, const char *text,
                     size_t length);
};

static void scan_advance(struct scan *scan)
{
    if (*scan->at == '\n') {
        scan->line++;
        scan->column = 1;
    } else if (((unsigned char)*scan->at & 0xc0) != 0x80) {
        scan->column++;
    }
    scan->at++;
}

static char scan_peek(struct scan *scan)
{
    while (scan->at < scan->end && strchr(" \t\r\n", *scan->at))
        scan_advance(scan);
    return scan->at < scan->end ? *scan->at : '\0';
}

static void scan_string(struct scan *scan)
{
    scan_advance(scan);
    while (scan->at < scan->end && *scan->at != '"') {
        if (*scan->at == '\\')
            scan_advance(scan);
        if (scan->at < scan->end)
            scan_advance(scan);
    }
    if (scan->at < scan->end)
        scan_advance(scan);
}

static void scan_value(struct scan *scan);

static json_int_t number_at(const json_t *numbers, size_t index)
{
    return json_integer_value(json_array_get(numbers, index));
}

/* One member of an object; `seen` maps the keys so far to where they stand and to the last value:
 * [line, column, begin, end]. */
static void scan_member(struct scan *scan, json_t *seen)
{
    const char *start = scan->at;
    int line = scan->line;
    int column = scan->column;
    size_t above = scan->pointer.length;
    scan_string(scan);
    json_t *key = json_loadb(start, (size_t)(scan->at - start), JSON_DECODE_ANY, NULL);
    const char *name = json_string_value(key);
    if (!name) {
        scan->report->exhausted = true;
        json_decref(key);
        scan->at = scan->end;
        return;
    }
    config_pointer_push(&scan->pointer, name);
    json_t *first = json_object_get(seen, name);
    if (first) {
        json_int_t begin = number_at(first, 2);
        config_report_at(scan->report, line, column,
                         "%s: key given twice, first at line %d, column %d", scan->pointer.text,
                         (int)number_at(first, 0), (int)number_at(first, 1));
        scan->replaced(scan->report, scan->pointer.text, scan->text + begin,
                       (size_t)(number_at(first, 3) - begin));
        line = (int)number_at(first, 0);
        column = (int)number_at(first, 1);
    }
    if (scan_peek(scan) == ':')
        scan_advance(scan);
    json_int_t begin = scan->at - scan->text;
    scan_value(scan);
    json_int_t end = scan->at - scan->text;
    if (json_object_set_new(seen, name, json_pack("[i,i,I,I]", line, column, begin, end)))
        scan->report->exhausted = true;
    json_decref(key);
    config_pointer_cut(&scan->pointer, above);
}

static void scan_object(struct scan *scan)
{
    json_t *seen = json_object();
    if (!seen) {
        scan->report->exhausted = true;
        scan->at = scan->end;
        return;
    }
    scan_advance(scan);
    while (scan_peek(scan) != '\0' && *scan->at != '}') {
        if (*scan->at == '"')
            scan_member(scan, seen);
        else /* the comma */
            scan_advance(scan);
    }
    if (scan->at < scan->end)
        scan_advance(scan);
    json_decref(seen);
}

static void scan_array(struct scan *scan)
{
    size_t above = scan->pointer.length;
    size_t index = 0;
    scan_advance(scan);
    while (scan_peek(scan) != '\0' && *scan->at != ']') {
        if (*scan->at == ',') {
            scan_advance(scan);
            continue;
        }
        config_pointer_push_index(&scan->pointer, index++);
        scan_value(scan);
        config_pointer_cut(&scan->pointer, above);
    }
    if (scan->at < scan->end)
        scan_advance(scan);
}

/* Walk over one value. The recursion is as deep as jansson lets a document be (2048 levels). */
static void scan_value(struct scan *scan)
{
    char first = scan_peek(scan);
    if (first == '{') {
        scan_object(scan);
    } else if (first == '[') {
        scan_array(scan);
    } else if (first == '"') {
        scan_string(scan);
    } else {
        while (scan->at < scan->end && !strchr(",]} \t\r\n", *scan->at))
            scan_advance(scan);
    }
}

void config_scan_doubled(struct config_report *report, const char *text, size_t length,
                         void (*replaced)(struct config_report *report, const char *pointer,
                                          const char *text, size_t length))
{
    struct scan scan = {.report = report,
                        .text = text,
                        .at = text,
                        .end = text + length,
                        .line = 1,
                        .column = 1,
                        .replaced = replaced};
    scan_value(&scan);
}
