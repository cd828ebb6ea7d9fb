#include "worker/device/device_numa.h"

#include "tests/lib/suite.h"

#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void put(const char *directory, const char *address, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", directory, address);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/%s/numa_node", directory, address);
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

START_TEST(test_find)
{
    char *directory = suite_make_directory();
    put(directory, "0000:1b:00.0", "1\n");
    put(directory, "0000:af:00.0", "0\n");
    put(directory, "0000:01:00.0", "-1\n");
    put(directory, "0000:02:00.0", "");
    put(directory, "0000:03:00.0", "one\n");
    put(directory, "0000:04:00.0", "99999\n");
    ck_assert_int_eq(device_numa_find(directory, "0000:1b:00.0"), 1);
    ck_assert_int_eq(device_numa_find(directory, "0000:1B:00.0"), 1);
    ck_assert_int_eq(device_numa_find(directory, "0000:AF:00.0"), 0);
    ck_assert_int_eq(device_numa_find(directory, "0000:01:00.0"), -1);
    ck_assert_int_eq(device_numa_find(directory, "0000:02:00.0"), -1);
    ck_assert_int_eq(device_numa_find(directory, "0000:03:00.0"), -1);
    ck_assert_int_eq(device_numa_find(directory, "0000:04:00.0"), -1);
    ck_assert_int_eq(device_numa_find(directory, "0000:05:00.0"), -1);
    ck_assert_int_eq(device_numa_find(directory, "an address that is far too long for one"), -1);
    ck_assert_int_eq(device_numa_find(NULL, "ffff:ff:1f.7"), -1);
    suite_remove_directory(directory);
}
END_TEST

START_TEST(test_prefer)
{
    size_t bytes = 1 << 20;
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    device_numa_prefer(memory, bytes, -1);
    device_numa_prefer(memory, bytes, 1000);
    int mode = -1;
    unsigned long nodes[16] = {0};
    if (syscall(SYS_get_mempolicy, &mode, nodes, 1024ul, memory, MPOL_F_ADDR) != 0) {
        suite_skip("device_numa", "memory policies are not for this process");
    } else {
        ck_assert_int_eq(mode, MPOL_DEFAULT);
        device_numa_prefer(memory, bytes, 0);
        ck_assert_int_eq(syscall(SYS_get_mempolicy, &mode, nodes, 1024ul, memory, MPOL_F_ADDR), 0);
        ck_assert_int_eq(mode, MPOL_PREFERRED);
        ck_assert_uint_eq(nodes[0], 1);
    }
    memset(memory, 1, bytes); /* whatever was asked for */
    munmap(memory, bytes);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_numa");
    TCase *core = tcase_create("core");
    tcase_add_test(core, test_find);
    tcase_add_test(core, test_prefer);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
