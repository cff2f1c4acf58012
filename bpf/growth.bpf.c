/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Growth of address spaces: which place mapped what is still mapped (mmap, mremap, munmap, brk), and which places touch
 * new pages (page faults, sampled). And the life of the processes watched.
 */

#define MAP_FAILED_FROM (-4095L)
#define MAP_ANONYMOUS_FLAG 0x20
#define MAP_TYPE_MASK 0x0f
#define MAP_PRIVATE_TYPE 0x02
#define PROT_ANY 0x7
#define RANGES_AT_ONCE 8

/* A mapping whose beginning was seen, found by either end. kind 0: of a file, or not accessible: not counted, but known,
 * so that its end is no riddle. */
struct region {
	u64 start;
	struct site_key site;
};
struct region_key {
	u64 address;
	u32 tgid;
	u32 life;
};

BPF_TABLE("hash", struct region_key, struct region, regions, 65536);   /* by the first address behind it */
BPF_TABLE("hash", struct region_key, u64, region_ends, 65536);         /* by its first address */
BPF_TABLE("hash", u32, u64, heap_ends, 16384);

static __always_inline void enter_region(u32 tgid, u32 life, u64 start, u64 end, struct site_key *site)
{
	struct region_key from = { .address = start, .tgid = tgid, .life = life };
	struct region_key to = { .address = end, .tgid = tgid, .life = life };
	struct region region = { .start = start, .site = *site };

	if (regions.update(&to, &region) || region_ends.update(&from, &end))
		count(LOST_REGION);
}

static __always_inline void leave_region(u32 tgid, u32 life, u64 start, u64 end)
{
	struct region_key from = { .address = start, .tgid = tgid, .life = life };
	struct region_key to = { .address = end, .tgid = tgid, .life = life };

	regions.delete(&to);
	region_ends.delete(&from);
}

static __always_inline void credit(struct region *region, u64 bytes)
{
	if (region->site.kind)
		add_freed(&region->site, bytes);
}

/* start..end is no longer mapped: whole regions, the head of one, the tail of one. */
static __always_inline void unmap(u32 tgid, u32 life, u64 start, u64 end, u32 kind)
{
	for (int step = 0; step < RANGES_AT_ONCE && start < end; step++) {
		struct region_key from = { .address = start, .tgid = tgid, .life = life };
		struct region_key to = { .address = end, .tgid = tgid, .life = life };
		u64 *found = region_ends.lookup(&from);
		struct region *region;
		struct region known;

		if (found) {
			u64 old_end = *found;

			to.address = old_end;
			region = regions.lookup(&to);
			if (!region)
				break;
			known = *region;
			leave_region(tgid, life, start, old_end);
			if (old_end > end) {
				credit(&known, end - start);
				enter_region(tgid, life, end, old_end, &known.site);
				return;
			}
			credit(&known, old_end - start);
			start = old_end;
			continue;
		}
		region = regions.lookup(&to);
		if (!region)
			break;
		known = *region;
		leave_region(tgid, life, known.start, end);
		if (known.start < start) {
			credit(&known, end - start);
			enter_region(tgid, life, known.start, start, &known.site);
			return;
		}
		credit(&known, end - known.start);
		end = known.start;
	}
	if (start < end)
		add_unpaired(tgid, life, kind, end - start);
}

static __always_inline void map(void *ctx, struct pt_regs *regs, struct site_key *site, u64 start, u64 end)
{
	u64 stack_pointer = REGISTER(regs, sp);

	if (site->kind) {
		site->stack_id = stacks.get_stackid(ctx, BPF_F_USER_STACK);
		site->caller = RETURN_REGISTER(regs);
		if (!site->caller)
			site->caller = caller_at(stack_pointer);
		add_allocated(site, end - start, stack_pointer);
	}
	enter_region(site->tgid, site->life, start, end, site);
}

static __always_inline bool is_counted(u64 prot, u64 flags)
{
	return (flags & MAP_ANONYMOUS_FLAG) && (flags & MAP_TYPE_MASK) == MAP_PRIVATE_TYPE && (prot & PROT_ANY);
}

static __always_inline u64 whole_pages(u64 bytes)
{
	return (bytes + PAGE_SIZE - 1) & ~(PAGE_SIZE - 1);
}

/* sys_exit(regs, ret) */
int on_growth(u64 *ctx)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	u32 life = life_of(tgid);
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	u64 ret = ctx[1];
	struct site_key site = { .tgid = tgid, .life = life };
	u64 *heap_end, before;

	if (!life || ret >= (u64)MAP_FAILED_FROM)
		return 0;
	switch (SYSCALL_ID(regs)) {
	case NR_mmap:
		site.kind = is_counted(ARG3(regs), ARG4(regs)) ? SITE_MMAP : 0;
		map(ctx, regs, &site, ret, ret + whole_pages(ARG2(regs)));
		break;
	case NR_munmap:
		unmap(tgid, life, ARG1(regs), ARG1(regs) + whole_pages(ARG2(regs)), SITE_MMAP);
		break;
	case NR_mremap:
		unmap(tgid, life, ARG1(regs), ARG1(regs) + whole_pages(ARG2(regs)), SITE_MMAP);
		site.kind = SITE_MMAP;
		map(ctx, regs, &site, ret, ret + whole_pages(ARG3(regs)));
		break;
	case NR_brk:
		heap_end = heap_ends.lookup(&tgid);
		before = heap_end ? *heap_end : ret;
		heap_ends.update(&tgid, &ret);
		site.kind = SITE_BRK;
		if (ret > before)
			map(ctx, regs, &site, before, ret);
		else if (ret < before)
			unmap(tgid, life, ret, before, SITE_BRK);
		break;
	}
	return 0;
}

SAMPLE_CONTEXT(sampled_fault);

/* The software event page-faults, one in `sample_period` of a CPU's. */
int on_fault(struct sampled_fault *ctx)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct site_key site = { .tgid = tgid, .life = life_of(tgid), .kind = SITE_FAULT };

	if (!site.life)
		return 0;
	site.stack_id = stacks.get_stackid(ctx, BPF_F_USER_STACK);
	site.caller = INSTRUCTION(&ctx->regs);
	add_allocated(&site, ctx->sample_period * PAGE_SIZE, ctx->regs.sp);
	return 0;
}

/* sched_process_fork(parent, child) */
int on_site_fork(u64 *ctx)
{
	struct task_struct *parent = (struct task_struct *)ctx[0];
	struct task_struct *child = (struct task_struct *)ctx[1];
	u32 parent_tgid = KREAD(parent, tgid), tgid = KREAD(child, tgid), life = new_life();
	struct mm_struct *mm;
	u64 brk;

	if (tgid == parent_tgid || tgid != (u32)KREAD(child, pid) || !life_of(parent_tgid))
		return 0;
	mm = KREAD(child, mm);
	brk = KREAD(mm, brk);
	watched.update(&tgid, &life);
	heap_ends.update(&tgid, &brk);
	return 0;
}

/* sched_process_exec(task, old_pid, bprm) */
int on_site_exec(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	u32 tgid = KREAD(task, tgid), life = new_life();
	struct mm_struct *mm;
	u64 brk;

	if (!life_of(tgid))
		return 0;
	mm = KREAD(task, mm);
	brk = KREAD(mm, brk);
	watched.update(&tgid, &life);
	heap_ends.update(&tgid, &brk);
	return 0;
}

/* sched_process_exit(task): once for each thread */
int on_site_exit(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	struct signal_struct *signal = KREAD(task, signal);
	u32 tgid = KREAD(task, tgid);

	if (!life_of(tgid) || KREAD(signal, live.counter) != 0)
		return 0;
	watched.delete(&tgid);
	heap_ends.delete(&tgid);
	return 0;
}
