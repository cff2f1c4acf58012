/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the kernel tells Python, defined once. bcc compiles this text; rtdebug/tracing/schema.py reads the
 * same text with cffi. So: only #define NUMBER, enum and struct; explicit padding; the unit is the ending
 * of the name (_ns, _bytes, _pages, _id).
 *
 * Three rings. `calls` has one 64-byte slot per call (8 of them are the kernel's record header), for events
 * that come by the million. `events` has 512-byte slots, for what is rare and carries text. A slot size
 * that divides the ring means no record is ever split by its end, so Python maps the ring once.
 */
#ifndef RTDEBUG_EVENTS_H
#define RTDEBUG_EVENTS_H

#define COMM_LEN 16
#define NAME_LEN 256
#define PARENT_LEN 64
#define CMDLINE_LEN 256
#define MEMCG_LEVELS 11
#define CALL_PAYLOAD 56
#define EVENT_PAYLOAD 504

enum event_type {
	EVENT_NONE = 0,
	/* ring `calls`: struct call_event; also the aggregated ones */
	EVENT_MMAP = 1,
	EVENT_MUNMAP = 2,
	EVENT_MREMAP = 3,
	EVENT_BRK = 4,
	EVENT_MADVISE = 5,
	EVENT_PROCESS_MADVISE = 6,
	/* ring `events` */
	EVENT_SHM_OPEN = 16,      /* struct shm_file_event */
	EVENT_SHM_UNLINK = 17,    /* struct shm_file_event */
	EVENT_FTRUNCATE = 18,     /* struct shm_file_event: of a POSIX shm file or a memfd */
	EVENT_SHMGET = 19,        /* struct sysv_event */
	EVENT_SHMAT = 20,
	EVENT_SHMDT = 21,
	EVENT_SHMCTL = 22,
	EVENT_MEMFD_CREATE = 23,  /* struct shm_file_event */
	EVENT_SHM_FULL = 24,      /* struct tmpfs_event */
	EVENT_SIGBUS = 25,        /* struct tmpfs_event */
	EVENT_OOM_KILL = 26,      /* struct oom_event */
	/* ring `bookkeeping`, in the same slots as `events`; never shown as lines */
	EVENT_PROCESS_FORK = 40,  /* struct process_event */
	EVENT_PROCESS_EXEC = 41,
	EVENT_PROCESS_EXIT = 42,
	EVENT_PROCESS_COMM = 43,
	EVENT_PROCESS_ENTER = 44, /* came into the container's cgroup from outside */
	EVENT_CGROUP_MKDIR = 45,  /* struct cgroup_event */
	EVENT_CGROUP_RMDIR = 46,
	EVENT_TYPES = 64,
};

/* One call. A failed call has ret = -errno. */
struct call_event {
	__u64 time_ns;           /* CLOCK_MONOTONIC */
	__u64 address;           /* mmap: the address got; mremap: the old one */
	__u64 length_bytes;      /* mremap: the new length; process_madvise: what it reached; brk: the change */
	__s64 ret;
	__u32 pid;               /* tgid, in the host's pid namespace */
	__u32 tid;
	__u32 flags;             /* mmap, mremap: MAP_x or MREMAP_x; process_madvise: the process advised */
	__u32 old_length_pages;  /* mremap only */
	__s32 stack_id;          /* negative: none taken */
	__u16 event;             /* enum event_type */
	__u8 advice;             /* madvise, process_madvise: MADV_x; 0xff: a number that no byte holds */
	__u8 prot;               /* mmap: PROT_x */
};

/* High-rate calls added up in the kernel: one entry for each different key. */
struct aggregate_key {
	__u32 pid;
	__s32 stack_id;
	__u16 event;
	__u16 error;             /* errno, 0 for success */
	__u8 advice;
	__u8 prot;
	__u16 mapping;           /* mmap: the low 16 bits of flags */
};

struct aggregate {
	__u64 count;
	__u64 length_bytes;
};

/* First part of every record in the ring `events`. */
struct event_header {
	__u64 time_ns;
	__u32 pid;               /* tgid, in the host's pid namespace */
	__u32 tid;
	__u32 ns_pid;            /* tgid as the process itself sees it */
	__u16 event;             /* enum event_type */
	__u16 padding;
	char comm[COMM_LEN];
};

struct process_event {
	struct event_header header;  /* the process it is about */
	__u64 memcg_id;              /* kernfs id of its cgroup in the memory controller's hierarchy */
	__u64 start_ns;              /* CLOCK_BOOTTIME, as in /proc/PID/stat, not rounded */
	__u64 total_vm_pages;        /* exec: after loading the program */
	__u32 parent_pid;            /* tgid of the parent */
	__u32 uid;   
	__u32 compat;                /* 1: a 32-bit program on a 64-bit kernel; its calls are not decoded */
	__s32 exit_code;             /* exit: as wait(2) gives it */
	__u32 cmdline_bytes;         /* exec: how much of cmdline[] is filled */
	__u32 padding;
	char cmdline[CMDLINE_LEN];   /* exec: arguments, NUL between them */
};

struct cgroup_event {
	struct event_header header;  /* who did it */
	__u64 cgroup_id;
	__u64 parent_id;
	__u32 level;
	__u32 padding;
	char path[NAME_LEN];         /* below the root of its hierarchy */
};

/* A file of shared memory: in a tmpfs mounted at /dev/shm, or a memfd. */
struct shm_file_event {
	struct event_header header;
	__s64 ret;
	__u64 inode_id;
	__u64 length_bytes;          /* ftruncate: the new length; else the file's length */
	__u32 device_id;             /* s_dev of the tmpfs, (major << 20) | minor; 0: unknown */
	__u32 flags;                 /* O_x, or MFD_x */
	__u32 mode;                  /* permissions asked for */
	__u32 created;               /* 1: this call made the file */
	__u32 memfd;                 /* 1: ftruncate of a memfd */
	__u32 user_path;             /* 1: `name` is the path the process passed (the call failed or unlinked) */
	__s32 stack_id;
	__u32 deeper;                /* 1: `grandparent` is itself in a directory of the tmpfs that is not told */
	char name[NAME_LEN];
	char parent[PARENT_LEN];     /* directory in the tmpfs, "" at its root; of a relative path: where it begins */
	char grandparent[PARENT_LEN];
};

struct sysv_event {
	struct event_header header;
	__s64 ret;                   /* shmget: the id; shmat: the address */
	__u64 address;               /* shmat, shmdt */
	__u64 length_bytes;          /* shmget: as asked; shmat: of the segment */
	__s32 shm_id;                /* shmat, shmctl, and shmget that succeeded; else -1 */
	__s32 key;                   /* shmget; IPC_PRIVATE is 0 */
	__u32 flags;
	__u32 command;               /* shmctl: IPC_x or SHM_x */
	__s32 stack_id;
	__u32 padding;
};

/* A tmpfs that refused a page: to a call (shm_full) or to a page fault (sigbus). */
struct tmpfs_event {
	struct event_header header;
	__u64 address;               /* sigbus: si_addr */
	__u64 length_bytes;          /* shm_full: bytes the call asked for, when it says */
	__u64 mapping_start;         /* sigbus: the mapping the address lies in; 0: none */
	__u64 mapping_end;
	__u64 file_offset_bytes;     /* sigbus: what the address is in the file */
	__u64 file_length_bytes;
	__u64 inode_id;
	__u64 size_pages;            /* of the tmpfs; 0: no limit of its own */
	__u64 used_pages;
	__u64 size_inodes;
	__u64 free_inodes;
	__u32 device_id;
	__u32 syscall_id;            /* shm_full: number of the call */
	__s32 signal_code;           /* sigbus: BUS_x of si_code */
	__s32 stack_id;
	__u32 tmpfs;                 /* 1: the file lies in a tmpfs (POSIX shm, SysV, memfd, tmpfs mount) */
	__u32 by_fault;              /* shm_full: 1 found by a page fault, not by a call */
	__u32 at_shm;                /* 1: that tmpfs is mounted at a place called shm */
	__u32 deeper;                /* 1: `parent` is itself in a directory of the tmpfs that is not told */
	char name[NAME_LEN];         /* of the file, or the path a call failed on */
	char parent[PARENT_LEN];     /* of a relative path: where it begins */
};

/* One cgroup on the way from the victim's to the root, at the moment of the kill. */
struct memcg_level {
	__u64 memcg_id;
	__u64 usage_pages;
	__u64 limit_pages;
	__u64 failcnt;               /* v1: memory.failcnt; v2: `max` of memory.events.local */
};

struct oom_event {
	struct event_header header;  /* the victim */
	__u64 memcg_id;              /* the victim's cgroup */
	__u64 oom_memcg_id;          /* the cgroup whose limit was hit; 0: global, or not known (see source) */
	__u64 total_vm_pages;
	__u32 trigger_pid;           /* tgid whose allocation started it; equals pid: the victim itself */
	__u32 trigger_tid;
	__u32 uid;   
	__s32 order;                 /* of the allocation; -1 when not known */
	__u32 anon_pages;
	__u32 file_pages;
	__u32 shmem_pages;
	__u32 swap_pages;
	__u32 page_table_bytes;
	__u32 gfp_mask;
	__s16 oom_score_adj;
	__u16 constraint;            /* enum oom_constraint of the kernel; 0xffff when not known */
	__u16 levels;                /* how many of memcg[] are filled */
	__u16 oom_group;             /* 1: killed because of memory.oom.group */
	char trigger_comm[COMM_LEN];
	struct memcg_level memcg[MEMCG_LEVELS];
};

#endif
