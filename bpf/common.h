/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Maps, the filter and the way out, shared by all subjects. The sources are joined into one translation unit
 * (rtdebug/tracing/sources.py); map sizes are upper bounds that the loader replaces for the host it runs on.
 */
#ifndef RTDEBUG_COMMON_H
#define RTDEBUG_COMMON_H

#define V2_HIERARCHY_ID 0

/* What user space asks for; one entry, written before anything is attached. */
struct config {
	u64 events;               /* BIT(enum event_type) */
	u64 min_bytes;
	u64 comm[COMM_LEN / 8];   /* all zero: any */
	u32 memory_hierarchy_id;  /* cgroup_root.hierarchy_id of the memory controller; V2_HIERARCHY_ID: it is on v2 */
	u32 all;                  /* 1: every process of the host */
	u32 only_pid;             /* 1: children of the traced process are not followed */
	u32 by_cgroup;            /* 1: a process that leaves the cgroups of `target_cgroups` is let go */
	u32 every_call;           /* 1: one record for each call, else aggregated */
	u32 stack;                /* 1: take user stacks */
};

enum traced_state {
	NOT_TRACED = 0,
	TRACED = 1,
	TRACED_COMPAT = 2,        /* traced, but a 32-bit program: its system call numbers mean other calls */
	TRACED_RUNTIME = 3,       /* runc or crun on its way in, until its exec; or rtdebug itself: calls that are not shown */
};

/* One byte for each possible tgid. An array look-up is inlined by the JIT and a byte is stored without a lock:
 * that keeps what a bystander pays to a few nanoseconds, where a hash look-up costs ten times as much. */
#define TRACED_PAGE 4096
struct traced_page {
	u8 state[TRACED_PAGE];
};



BPF_ARRAY(config, struct config, 1);
/* user space maps it and stores bytes too, so that neither side overwrites the other's */
BPF_F_TABLE("array", u32, struct traced_page, traced, 8, BPF_F_MMAPABLE);
BPF_TABLE("hash", u64, u32, target_cgroups, 16384);
BPF_TABLE("hash", u32, u64, brk_ends, 32768);
BPF_TABLE("percpu_hash", struct aggregate_key, struct aggregate, aggregates, 8192);
BPF_TABLE("percpu_array", u32, u64, lost, EVENT_TYPES);
BPF_RINGBUF_OUTPUT(calls, 2048);
BPF_RINGBUF_OUTPUT(events, 256);
/* who is who; apart from `events`, so that a storm of forks takes no room from an OOM kill */
BPF_RINGBUF_OUTPUT(bookkeeping, 256);

static __always_inline struct config *get_config(void)
{
	u32 zero = 0;
	return config.lookup(&zero);
}

static __always_inline u8 traced_state(u32 tgid)
{
	u32 page = tgid / TRACED_PAGE;
	struct traced_page *states = traced.lookup(&page);
	return states ? states->state[tgid % TRACED_PAGE] : NOT_TRACED;
}

static __always_inline void set_traced_state(u32 tgid, u8 state)
{
	u32 page = tgid / TRACED_PAGE;
	struct traced_page *states = traced.lookup(&page);
	if (states)
		states->state[tgid % TRACED_PAGE] = state;
}

static __always_inline bool wants(struct config *cfg, u32 event)
{
	return cfg->events & BIT(event);
}

static __always_inline bool is_comm(struct config *cfg, const char *comm)
{
	u64 words[COMM_LEN / 8];

	if (!cfg->comm[0])
		return true;
	__builtin_memcpy(words, comm, sizeof(words));
	return words[0] == cfg->comm[0] && words[1] == cfg->comm[1];
}

static __always_inline bool comm_matches(struct config *cfg)
{
	char comm[COMM_LEN] = {};

	if (!cfg->comm[0])
		return true;
	bpf_get_current_comm(comm, sizeof(comm));
	return is_comm(cfg, comm);
}

static __always_inline void count_lost(u32 event)
{
	u64 *count = lost.lookup(&event);
	if (count)
		(*count)++;
}

static __always_inline u32 ns_pid_of(struct task_struct *task)
{
	struct task_struct *leader = KREAD(task, group_leader);
	struct pid *pid = KREAD(leader, thread_pid);
	u32 level = KREAD(pid, level);
	struct upid upid = {};

	bpf_probe_read_kernel(&upid, sizeof(upid), &pid->numbers[level & 31]);
	return upid.nr;
}

/* For a record about the current process. */
static __always_inline void fill_header(struct event_header *header, u32 event)
{
	u64 pid_tgid = bpf_get_current_pid_tgid();

	header->time_ns = bpf_ktime_get_ns();
	header->pid = pid_tgid >> 32;
	header->tid = pid_tgid;
	header->ns_pid = ns_pid_of((struct task_struct *)bpf_get_current_task());
	header->event = event;
	header->padding = 0;
	bpf_get_current_comm(header->comm, sizeof(header->comm));
}

/* For a record about another process. */
static __always_inline void fill_header_of(struct event_header *header, u32 event, struct task_struct *task)
{
	header->time_ns = bpf_ktime_get_ns();
	header->pid = KREAD(task, tgid);
	header->tid = KREAD(task, pid);
	header->ns_pid = ns_pid_of(task);
	header->event = event;
	header->padding = 0;
	/* before commit 3a3f61ce5e0b ("exec: Make sure task->comm is always NUL-terminated"), in v6.14, the rest of an
	 * older, longer name may lie behind the NUL */
	__builtin_memset(header->comm, 0, sizeof(header->comm));
	bpf_probe_read_kernel_str(header->comm, sizeof(header->comm), &task->comm);
}

/* Slots of the ring `events` have one size, so that user space needs no search for the next one. */
struct event_slot {
	u8 payload[EVENT_PAYLOAD];
};

static __always_inline void *reserve_event(u32 event)
{
	void *slot = events.ringbuf_reserve(sizeof(struct event_slot));

	if (!slot)
		count_lost(event);
	return slot;
}

static __always_inline void *reserve_bookkeeping(u32 event)
{
	void *slot = bookkeeping.ringbuf_reserve(sizeof(struct event_slot));

	if (!slot)
		count_lost(event);
	return slot;
}

#endif
