/* SPDX-License-Identifier: GPL-2.0-or-later */
/* mmap, munmap, mremap, brk, madvise, process_madvise: what comes by the million. */

#define MAP_FAILED_FROM (-4095L)
#define NO_ADVICE 0xff

struct call {
	u64 address;
	u64 length_bytes;
	s64 ret;
	u32 flags;
	u32 old_length_pages;
	u16 event;
	u8 advice;
	u8 prot;
};

static __always_inline bool failed(s64 ret)
{
	return (u64)ret >= (u64)MAP_FAILED_FROM;
}

static __always_inline void record_call(void *ctx, struct config *cfg, struct call *call)
{
	struct call_event *e = calls.ringbuf_reserve(sizeof(struct call_event));
	u64 pid_tgid = bpf_get_current_pid_tgid();

	if (!e) {
		count_lost(call->event);
		return;
	}
	e->time_ns = bpf_ktime_get_ns();
	e->address = call->address;
	e->length_bytes = call->length_bytes;
	e->ret = call->ret;
	e->pid = pid_tgid >> 32;
	e->tid = pid_tgid;
	e->flags = call->flags;
	e->old_length_pages = call->old_length_pages;
	e->stack_id = call_stack_id(ctx, cfg);
	e->event = call->event;
	e->advice = call->advice;
	e->prot = call->prot;
	/* the reader drains on a timer: waking it for each record would cost more than the record */
	calls.ringbuf_submit(e, BPF_RB_NO_WAKEUP);
}

static __always_inline void aggregate_call(void *ctx, struct config *cfg, struct call *call)
{
	struct aggregate_key key = {
		.pid = bpf_get_current_pid_tgid() >> 32,
		.stack_id = call_stack_id(ctx, cfg),
		.event = call->event,
		.error = failed(call->ret) ? -call->ret : 0,
		.advice = call->advice,
		.prot = call->prot,
		.mapping = call->event == EVENT_MMAP ? call->flags : 0,
	};
	struct aggregate *sum = aggregates.lookup(&key);

	if (sum) {
		sum->count++;
		sum->length_bytes += call->length_bytes;
	} else {
		struct aggregate first = { .count = 1, .length_bytes = call->length_bytes };

		if (aggregates.update(&key, &first))
			count_lost(call->event);
	}
}

static __always_inline void on_call(void *ctx, struct config *cfg, struct call *call)
{
	if (!wants(cfg, call->event) || !comm_matches(cfg))
		return;
	if (cfg->min_bytes) {
		u64 length = (s64)call->length_bytes < 0 ? -call->length_bytes : call->length_bytes;

		if (length < cfg->min_bytes)
			return;
	}
	if (cfg->every_call)
		record_call(ctx, cfg, call);
	else
		aggregate_call(ctx, cfg, call);
}

/* brk(2) tells where the heap ends; what it changed needs the end before. */
static __always_inline u64 brk_change(u64 end)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	u64 *known = brk_ends.lookup(&tgid);
	u64 change = 0;

	if (known) {
		change = end - *known;
		*known = end;
	} else {
		brk_ends.update(&tgid, &end);
	}
	return change;
}

/* MADV_x, in one byte; what is no advice of any kernel must not be taken for one by its low byte. */
static __always_inline u8 advice_of(u64 argument)
{
	return (u32)argument < NO_ADVICE ? argument : NO_ADVICE;
}

/* The process a pidfd stands for, in the host's pid namespace. */
static __always_inline u32 pid_of_pidfd(s32 fd)
{
	struct file *file = file_of(fd);
	struct pid *pid;
	struct upid upid = {};

	if (!file)
		return 0;
	pid = pid_of_pidfd_file(file);
	bpf_probe_read_kernel(&upid, sizeof(upid), &pid->numbers[0]);
	return upid.nr;
}

/* Returns true when the call was one of this subject. */
static __always_inline bool on_mapping_call(void *ctx, struct config *cfg, struct pt_regs *regs, u32 id, s64 ret)
{
	struct call call = { .ret = ret };

	switch (id) {
	case NR_madvise:
		call.event = EVENT_MADVISE;
		call.address = ARG1(regs);
		call.length_bytes = ARG2(regs);
		call.advice = advice_of(ARG3(regs));
		break;
	case NR_mmap:
		call.event = EVENT_MMAP;
		call.address = failed(ret) ? ARG1(regs) : ret;
		call.length_bytes = ARG2(regs);
		call.prot = ARG3(regs);
		call.flags = ARG4(regs);
		break;
	case NR_munmap:
		call.event = EVENT_MUNMAP;
		call.address = ARG1(regs);
		call.length_bytes = ARG2(regs);
		break;
	case NR_mremap:
		call.event = EVENT_MREMAP;
		call.address = ARG1(regs);
		call.length_bytes = ARG3(regs);
		call.old_length_pages = ARG2(regs) / PAGE_SIZE;
		call.flags = ARG4(regs);
		break;
	case NR_brk:
		call.event = EVENT_BRK;
		call.address = ARG1(regs);
		call.length_bytes = brk_change(ret);
		break;
	case NR_process_madvise:
		call.event = EVENT_PROCESS_MADVISE;
		call.address = 0;
		call.length_bytes = failed(ret) ? 0 : ret;
		call.advice = advice_of(ARG4(regs));
		if (wants(cfg, EVENT_PROCESS_MADVISE))
			call.flags = pid_of_pidfd(ARG1(regs));
		break;
	default:
		return false;
	}
	on_call(ctx, cfg, &call);
	return true;
}
