#include "server/sandbox/sandbox.h"

#include <errno.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <unistd.h>

/* By name: an older libseccomp does not know all of them, and those it cannot forbid. */
static const char *const denied[] = {
    /* rights, names and owners of files; the daemon makes its socket before */
    "acct",
    "chmod",
    "chown",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "fchown",
    "fchownat",
    "lchown",
    "link",
    "linkat",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "name_to_handle_at",
    "open_by_handle_at",
    "quotactl",
    "quotactl_fd",
    "rename",
    "renameat",
    "renameat2",
    "rmdir",
    "removexattr",
    "fremovexattr",
    "lremovexattr",
    "setxattr",
    "fsetxattr",
    "lsetxattr",
    "symlink",
    "symlinkat",
    "truncate",
    "utime",
    "utimensat",
    "utimes",
    /* whoever the process is, and where */
    "capset",
    "chroot",
    "personality",
    "pivot_root",
    "setdomainname",
    "setfsgid",
    "setfsuid",
    "setgid",
    "setgroups",
    "sethostname",
    "setns",
    "setregid",
    "setresgid",
    "setresuid",
    "setreuid",
    "setuid",
    "unshare",
    "vhangup",
    /* file systems */
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "swapoff",
    "swapon",
    "umount",
    "umount2",
    /* the kernel, and what it has been broken through */
    "add_key",
    "adjtimex",
    "bpf",
    "clock_adjtime",
    "clock_settime",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "modify_ldt",
    "nfsservctl",
    "perf_event_open",
    "reboot",
    "request_key",
    "settimeofday",
    "stime",
    "syslog",
    "userfaultfd",
    "vm86",
    "vm86old",
    /* other programs and processes */
    "execve",
    "execveat",
    "kcmp",
    "kill",
    "pidfd_getfd",
    "pidfd_send_signal",
    "process_madvise",
    "process_vm_readv",
    "process_vm_writev",
    "rt_sigqueueinfo",
    "tkill",
#ifndef SHOAL_SANITIZED
    "fork",
    "ptrace",
    "vfork",
#endif
};

static int sandbox_deny(scmp_filter_ctx filter)
{
    for (size_t i = 0; i < sizeof(denied) / sizeof(denied[0]); i++) {
        int number = seccomp_syscall_resolve_name(denied[i]);
        if (number == __NR_SCMP_ERROR)
            continue;
        int code = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), number, 0);
        /* One that this machine's kernel never had. */
        if (code < 0 && code != -EDOM)
            return code;
    }
    return 0;
}

/* A thread, but no process. What clone3 is asked for lies in memory, where no filter looks. */
static int sandbox_deny_processes(scmp_filter_ctx filter)
{
#ifdef SHOAL_SANITIZED
    (void)filter;
    return 0;
#else
    int code = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                                SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
    int clone3 = seccomp_syscall_resolve_name("clone3");
    if (code == 0 && clone3 != __NR_SCMP_ERROR)
        code = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), clone3, 0);
    return code;
#endif
}

/* Signals and limits of its own it may still set: abort and raise send one by number. */
static int sandbox_deny_others(scmp_filter_ctx filter)
{
    scmp_datum_t self = (scmp_datum_t)getpid();
    int code = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(tgkill), 1,
                                SCMP_A0(SCMP_CMP_NE, self));
    if (code == 0)
        code = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(rt_tgsigqueueinfo), 1,
                                SCMP_A0(SCMP_CMP_NE, self));
    if (code == 0)
        code = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(prlimit64), 1,
                                SCMP_A0(SCMP_CMP_NE, 0));
    return code;
}

static int sandbox_load(scmp_filter_ctx filter)
{
    /* All threads, or none. */
    int code = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
    /* Kernels before 5.16 slow every load and store of a filtered process, against a leak between
     * parts of one process that do not trust each other. The daemon has none, and sums. */
    if (code == 0)
        code = seccomp_attr_set(filter, SCMP_FLTATR_CTL_SSB, 1);
    /* What all threads do for ever is looked up in a tree, where the kernel keeps no map of it. */
    if (code == 0)
        code = seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
    if (code == 0)
        code = sandbox_deny(filter);
    if (code == 0)
        code = sandbox_deny_processes(filter);
    if (code == 0)
        code = sandbox_deny_others(filter);
    return code == 0 ? seccomp_load(filter) : code;
}

int sandbox_enter(struct error *error)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    if (!filter)
        return error_set(error, ERR_MEMORY, "no memory for a filter of system calls");
    int code = sandbox_load(filter);
    seccomp_release(filter);
    if (code < 0)
        return error_set(error, ERR_UNSUPPORTED, "a filter of system calls (seccomp): %s",
                         strerror(-code));
    return 0;
}
